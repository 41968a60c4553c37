"""How the C library keeps memory, as far as it can be told: glibc's malloc.

Left alone, it gives large pieces back to the system as soon as they are freed, and each request with a large
tensor has the system find and clear them again, page by page. A server keeps them for the next request
instead, and gives them back when a model is unloaded.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX of mallopt(3)."""
_KEPT_BYTES = 32 << 20
"""At most so much lies free at the end of each of malloc's arenas."""
_ARENAS = 4
"""There are no more of them: by default each thread may have its own, and keep as much."""
_LARGEST = 4 << 20
"""Larger pieces come from the system, and go back to it at once."""
_SET_BY_USER = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
)


def keep_freed() -> None:
    """From now on keep what is freed for the next request, unless the environment says how to keep it."""
    library = _library()
    if library is None or any(name in os.environ for name in _SET_BY_USER):
        return
    library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST)
    library.mallopt(_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Give back to the system what is free."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def _library() -> ctypes.CDLL | None:
    """Return the C library of this process, if it is glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
