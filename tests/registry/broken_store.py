"""A file system of fsspec that gets into trouble: `broken://...`, kept in memory."""

import errno
import threading
from typing import Any

from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem


class StoreGone(Exception):
    """What a store raises that follows no convention."""


class BrokenFileSystem(MemoryFileSystem):
    """Works until `trouble` is set: then writing so many files more fails, or everything at once."""

    protocol = "broken"
    cachable = False
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    trouble: Exception | None = None
    files_left = 0
    asked = threading.Event()
    """Set when a listing begins."""
    hold = threading.Event()
    """While it is not set, listings get no answer."""
    hold.set()
    stuck = "?"
    """Whatever has this in its path cannot be removed."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("broken://", "memory://"))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode:
            type(self).files_left -= 1
        self._fail(self.files_left < 0)
        return super()._open(path, mode, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._fail(self._is_away())
        return super().ls(path, detail=detail, **options)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        self.asked.set()
        assert self.hold.wait(timeout=60)
        if self._is_away() and isinstance(self.trouble, OSError):
            return {}  # As most stores of fsspec do, whose listings leave out what raises an OSError.
        self._fail(self._is_away())
        return super().find(path, *arguments, **options)

    def _is_away(self) -> bool:
        return isinstance(self.trouble, StoreGone | ConnectionError) and self.files_left < 0

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        if self.stuck in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        super().rm(path, recursive, maxdepth)

    def _fail(self, now: bool) -> None:
        if now and self.trouble is not None:
            raise self.trouble

    @classmethod
    def break_with(cls, trouble: Exception | None, files_left: int) -> None:
        cls.trouble, cls.files_left = trouble, files_left


register_implementation("broken", BrokenFileSystem, clobber=True)
DISK_FULL = OSError(errno.ENOSPC, "No space left on device")
GONE = StoreGone("the store is gone")
UNREACHABLE = ConnectionError("the store does not answer")
