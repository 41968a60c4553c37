"""Runs the code blocks of one Markdown file in order, as a reader would: `python docs_runner.py FILE`.

Python blocks share one namespace, `bash` blocks one folder and environment. A block after the comment
`<!-- not run: reason -->` is only shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)
RUN = ("python", "bash")


class Block(NamedTuple):
    """One fenced block."""

    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not run, when the file says so."""


def blocks(text: str) -> list[Block]:
    """Return the blocks of `text` in a language that is run, in order."""
    found = []
    for match in BLOCK.finditer(text):
        if match["language"] in RUN:
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(line, match["language"], match["code"], match["reason"]))
    return found


def run(file: Path, replacements: dict[str, str]) -> None:
    """Run every block of `file` that is to be run; the first that fails ends the process."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(file.read_text()):
        if block.reason:
            continue
        code = block.code
        for old, new in replacements.items():
            code = code.replace(old, new)
        print(f"--- {file.name}:{block.line} ({block.language})", flush=True)
        if block.language == "bash":
            subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True)
        else:
            # Padding keeps the line numbers of a traceback those of the file.
            exec(compile("\n" * (block.line - 1) + code, str(file), "exec"), namespace)


if __name__ == "__main__":
    pairs = dict(pair.split("=", 1) for pair in os.environ.get("DOCS_REPLACE", "").split(",") if pair)
    run(Path(sys.argv[1]), pairs)
