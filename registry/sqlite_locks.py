"""Who holds the write lock of a SQLite database, as the kernel tells it.

The kernel's table is read, and the file itself not opened: a process that closes a file loses all its locks
on it, also those that SQLite has taken through another descriptor.
"""

from __future__ import annotations

import os
from pathlib import Path

TABLE = Path("/proc/locks")
"""Linux's table of locks, a line each: number, kind, `ADVISORY`, `WRITE`, process, file, first, last byte."""
WRITE_LOCK_BYTE = 120
"""The byte of the `-shm` file that a writer locks, by SQLite's description of its write-ahead log."""


def writer_of(database: str) -> int | None:
    """Return the process that writes to the database now; None: there is none, or the kernel does not say."""
    try:
        shared = os.stat(f"{database}-shm")
        lines = TABLE.read_text().splitlines()
    except OSError:
        return None
    file = f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}:{shared.st_ino}"
    for line in lines:
        match line.split():
            case [_, "POSIX", _, "WRITE", process, where, first, last] if where == file:
                if int(first) <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE):
                    return int(process) or None  # 0: a process of another container
    return None
