"""Notices that a SQLite database is no longer the file that was opened.

SQLite keeps on writing to a file that has been deleted, and makes an empty one for the next connection;
either way nobody finds out until a restart, and what was written meanwhile is gone.
"""

from __future__ import annotations

import os

from registry.errors import DatabaseGone


class SQLiteFile:
    """The file of one engine, known by its device and inode since the first connection."""

    def __init__(self, url: str, path: str) -> None:
        """Take the URL as it may be shown, and the path, which stands for the same file from now on."""
        self._url, self._path = url, os.path.abspath(path)
        self._opened: tuple[int, int] | None = None

    def opened(self) -> None:
        """Remember the file, once a connection has been made, or see that it is still the same.

        Raises:
            DatabaseGone: it is not.
        """
        if self._opened is None:
            self._opened = self._found()
        self.check()

    def check(self) -> None:
        """See that the file is still the one that was opened; one call to the system, a few microseconds.

        A path that was not found right after the file had been opened is none that can be watched.

        Raises:
            DatabaseGone: it was deleted or replaced.
        """
        if self._opened is None:
            return
        found = self._found()
        if found != self._opened:
            raise DatabaseGone(self._url, "deleted" if found is None else "replaced by another")

    def _found(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # Nobody knows; what is wrong with the disk SQLite will say.
            return self._opened
        return status.st_dev, status.st_ino
