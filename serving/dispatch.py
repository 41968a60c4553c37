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

from serving.batching import BatchingParameters
from serving.errors import TimedOut
from serving.pace import Pace

T = TypeVar("T")

LARGE_REQUEST = 1 << 22
"""Bytes from which a request always goes to the pool, whatever was measured: parsing it alone takes long."""
BATCHED_QUICK_SECONDS = 0.0002
"""What takes less than this is not worth a batch: calls would have to meet in other threads, which costs as
much."""
MOST_THREADS = 512
"""Each call that waits for its batch holds a thread; there are no more of them than this."""
_MAX_KINDS = 4096


class Dispatcher:
    """Runs blocking work for an event loop."""

    def __init__(self, threads: int | None = None, *, gathers: bool = False) -> None:
        """`threads`: of the pool; by default four for each CPU, as TensorFlow Serving has for REST.

        `gathers`: work in different threads may be done together; so quick work stays in the event loop's
        thread only while it is alone, or so quick that nothing is won.
        """
        self._paces: dict[Hashable, Pace] = {}
        self._gathers = gathers
        self._present = 0
        self._pool = ThreadPoolExecutor(threads or default_threads(), thread_name_prefix="request")

    @classmethod
    def suited_to(cls, batching: BatchingParameters | None, threads: int | None = None) -> Dispatcher:
        """Return a dispatcher that lets calls meet in batches, if there are any: with a thread for each call
        that may wait for one, unless `threads` says how many."""
        if batching is None:
            return cls(threads)
        enough = min(max(batching.capacity, default_threads()), MOST_THREADS)
        return cls(threads or enough, gathers=True)

    def at_once(self, kind: Hashable, size: int) -> Pace | None:
        """Return the pace of work that is to be done here and now, and then noted there; None: ask `run`.

        `size` is the request's, in bytes.
        """
        pace = self._paces.get((kind, size.bit_length() >> 1))
        if pace is None or not pace.quick or size >= LARGE_REQUEST:
            return None
        return pace if not self._gathers or pace.within(BATCHED_QUICK_SECONDS) else None

    async def run(
        self, kind: Hashable, size: int, work: Callable[[], T], *, timeout: float | None = None
    ) -> T:
        """Return what `work()` returns or raise what it raises. `size` is the request's, in bytes.

        After `timeout` seconds the answer is given up. Work that has begun runs to its end all the same:
        threads cannot be stopped.

        Raises:
            TimedOut: see above.
        """
        self._present += 1
        try:
            return await self._run((kind, size.bit_length() >> 1), size, work, timeout)
        finally:
            self._present -= 1

    async def _run(self, key: Hashable, size: int, work: Callable[[], T], timeout: float | None) -> T:
        pace = self._paces.get(key)
        if pace is not None and pace.quick and size < LARGE_REQUEST and await self._stays(pace):
            started = time.perf_counter()
            result = work()
            pace.note(time.perf_counter() - started)
            return result
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, key, work)
        if timeout is None:
            return await future
        # Not `wait_for`: it asks for the current task, and there may be none yet.
        await asyncio.wait([future], timeout=timeout)
        if not future.done():
            future.cancel()
            raise TimedOut(
                f"Timed out: no answer within {timeout:g} s, the most this server lets a request take. "
                "Send fewer rows, or start the server with a longer timeout."
            )
        return future.result()

    async def _stays(self, pace: Pace) -> bool:
        """Whether quick work is done here and now, and not where it could meet others."""
        if not self._gathers or pace.within(BATCHED_QUICK_SECONDS):
            return True
        if self._present == 1:
            await asyncio.sleep(0)  # What has arrived at the same moment gets its turn, and is counted.
        return self._present == 1

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


def default_threads() -> int:
    """Return four for each CPU."""
    return 4 * (os.cpu_count() or 1)
