"""Where a request's work runs: in the event loop's own thread while it is quick, in a pool of threads when
it is not.

Handing work to another thread costs some 50 to 100 microseconds, more than a small model takes. So work that
has lately taken under a millisecond runs where it is asked for; work that takes longer, is large, or has not
been measured yet goes to the pool, where it blocks nobody. What was measured is kept for each kind of work
(model, signature, size class).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serving.servable import Pace

T = TypeVar("T")

LARGE_REQUEST = 1 << 22
"""Bytes from which a request always goes to the pool, whatever was measured: parsing it alone takes long."""
_MAX_KINDS = 4096


class Dispatcher:
    """Runs blocking work for an event loop."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: of the pool; by default four for each CPU, as TensorFlow Serving has for REST."""
        self._paces: dict[Hashable, Pace] = {}
        self._pool = ThreadPoolExecutor(threads or 4 * (os.cpu_count() or 1), thread_name_prefix="request")

    async def run(self, kind: Hashable, size: int, work: Callable[[], T]) -> T:
        """Return what `work()` returns or raise what it raises. `size` is the request's, in bytes."""
        key = (kind, size.bit_length() >> 1)
        pace = self._paces.get(key)
        if pace is not None and pace.quick and size < LARGE_REQUEST:
            started = time.perf_counter()
            result = work()
            pace.note(time.perf_counter() - started)
            return result
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._timed, key, work)

    def _timed(self, key: Hashable, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        if len(self._paces) >= _MAX_KINDS:
            self._paces.clear()  # Kinds are made of names that clients choose: they must not pile up.
        self._paces.setdefault(key, Pace()).note(time.perf_counter() - started)
        return result

    def close(self) -> None:
        """End the threads when their work is done."""
        self._pool.shutdown()
