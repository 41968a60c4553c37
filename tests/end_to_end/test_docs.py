"""Everything that a document shows runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end import docs_runner

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNNABLE = [document for document in DOCUMENTS if docs_runner.blocks(document.read_text())]


@pytest.mark.parametrize("document", RUNNABLE, ids=lambda path: path.name)
def test_every_block_of_a_document_runs(document: Path, tmp_path: Path) -> None:
    """The commands and programs of a document, run in order in an empty folder, all succeed."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    rest, grpc = free_ports(2)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "APPLIANCE_HOME": str(tmp_path / "home"),
        "APPLIANCE_REST_PORT": str(rest),
        "APPLIANCE_GRPC_PORT": str(grpc),
        "APPLIANCE_URL": f"http://127.0.0.1:{rest}",
        "DOCS_REPLACE": f":8501=:{rest},:8500=:{grpc}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    with (tmp_path / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(docs_runner.__file__)), str(document)],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=280)
        finally:
            stop_group(process.pid)
            subprocess.run([sys.executable, "-m", "appliance.cli", "down"], env=environment, check=True)
        output.seek(0)
        assert code == 0, output.read()[-6000:]


def test_a_block_that_is_not_run_says_why() -> None:
    """A document can show what cannot run here, with its reason; nothing else is left out."""
    text = "<!-- not run: needs Docker -->\n```bash\ndocker compose up\n```\n\n```python\nx = 1\n```\n"
    text += "```text\nonly output\n```\n"
    assert [(b.language, b.reason) for b in docs_runner.blocks(text)] == [
        ("bash", "needs Docker"),
        ("python", None),
    ]


def stop_group(group: int) -> None:
    """Kill what a document started and left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
