"""Another process that writes to a SQLite database, for as long as a test likes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing_process(file: Path) -> Iterator[int]:
    """Hold the write lock of a SQLite database in another process, and give its number."""
    script = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE'); print('writing', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process.pid  # The end of its input, at the end of `with`, lets it go.
