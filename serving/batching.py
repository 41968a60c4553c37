"""Requests that run together: rows of several calls of one signature become one call of the model.

Adaptive: a call that finds its model idle runs at once, in the thread that made it, so a lonely request
waits for nobody and changes threads for nothing. Calls that arrive while the model is busy gather, and the
next batch takes all of them, up to `max_batch_size`. `batch_timeout_micros` is how long a batch that is not
full waits at most while another one runs and threads are free.

Whoever is asked to fail alone: when a batch fails, each of its calls is run again by itself, so that only
the one that is to blame gets the error.

References: TensorFlow Serving, servables/tensorflow/session_bundle_config.proto (the parameters), and
TensorFlow, core/kernels/batching_util (padding).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serving.errors import InvalidInput, Overloaded

log = logging.getLogger(__name__)

Feeds = tuple[np.ndarray, ...]
Execute = Callable[[Any, Feeds], list[np.ndarray]]
"""(what to compute, inputs) -> outputs."""


@dataclass(frozen=True, slots=True)
class BatchingParameters:
    """How calls are put together; the names and defaults are TensorFlow Serving's.

    `max_batch_size`: rows of a batch. `batch_timeout_micros`: see the module. `max_enqueued_batches`: how
    many full batches of rows may wait, for each signature; what comes on top is refused.
    `num_batch_threads`: how many batches of one signature run at once. `allowed_batch_sizes`: a batch is
    filled up with copies of its first row to the next of these. `pad_variable_length_inputs`: calls whose
    inner sizes differ are put together, the shorter ones filled up with their first element.
    `enable_large_batch_splitting`: a call of more rows than fit is taken apart, into
    `max_execution_batch_size` rows (0: `max_batch_size`).

    Raises:
        InvalidInput: values that cannot work.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = False
    max_execution_batch_size: int = 0

    def __post_init__(self) -> None:
        smallest = {"max_batch_size": 1, "batch_timeout_micros": 0, "max_enqueued_batches": 0}
        smallest |= {"num_batch_threads": 1, "max_execution_batch_size": 0}
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} must be at least {least}; got {getattr(self, name)}.")
        sizes = self.allowed_batch_sizes
        if list(sizes) != sorted({size for size in sizes if size > 0}):
            raise InvalidInput(
                f"allowed_batch_sizes must be positive and in increasing order; got {list(sizes)}."
            )
        if sizes and sizes[-1] != self.rows:
            raise InvalidInput(
                f"Last entry in allowed_batch_sizes must match max_batch_size; last entry was {sizes[-1]}; "
                f"expected {self.rows}"
            )

    @property
    def rows(self) -> int:
        """The most rows that run in one call of the model."""
        return (self.enable_large_batch_splitting and self.max_execution_batch_size) or self.max_batch_size

    @property
    def capacity(self) -> int:
        """The most rows that may run and wait at once, for one signature."""
        return self.rows * (self.num_batch_threads + self.max_enqueued_batches)


def seconds_until_due(
    parameters: BatchingParameters, *, rows: int, running: int, waited: float
) -> float | None:
    """Return in how many seconds the waiting rows should run: 0.0 now, None when a running batch has ended.

    `rows` wait, the oldest since `waited` seconds; `running` batches are under way.
    """
    if running >= parameters.num_batch_threads:
        return None
    if running == 0 or rows >= parameters.rows:
        return 0.0
    return max(parameters.batch_timeout_micros / 1e6 - waited, 0.0)


class Batcher:
    """Puts calls together. Calls block; they may come from any threads.

    A thread that runs an event loop must not wait for others: its calls are batches of their own. What
    `serving.dispatch` leaves there is so quick that waiting in another thread would cost more than a batch
    could save.
    """

    def __init__(self, parameters: BatchingParameters, execute: Execute) -> None:
        """`execute` runs one call of the model; it may be called from several threads at once."""
        self.parameters = parameters
        self._execute = execute
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue] = {}

    def run(self, key: Hashable, feeds: Feeds) -> list[np.ndarray]:
        """Return the outputs for these feeds. `key` says what to compute: only calls of the same key share a
        batch.

        Calls without a batch dimension common to all inputs run alone.

        Raises:
            InvalidInput: more rows than a batch may have. Overloaded: too many rows are waiting already.
            And whatever `execute` raises for this call.
        """
        rows = _rows(feeds)
        if not rows:
            return self._execute(key, feeds)
        largest = self.parameters.max_batch_size
        if rows > largest and not self.parameters.enable_large_batch_splitting:
            raise InvalidInput(
                f"Task size {rows} is larger than maximum input batch size {largest}. Send at most {largest} "
                "rows in a request, or set enable_large_batch_splitting in the batching parameters."
            )
        return self._queue(key).run(feeds, rows, wait=not _runs_event_loop())

    def _queue(self, key: Hashable) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            with self._lock:
                queue = self._queues.setdefault(key, _Queue(self.parameters, key, self._execute))
        return queue


class _Task:
    """One call, or a piece of one, that waits for its batch."""

    __slots__ = ("arrived", "error", "feeds", "finished", "outputs", "rows", "taken", "wake")

    def __init__(self, feeds: Feeds, rows: int) -> None:
        self.feeds, self.rows = feeds, rows
        self.arrived = time.monotonic()
        self.taken = self.finished = False
        self.outputs: list[np.ndarray] = []
        self.error: Exception | None = None
        self.wake = threading.Event()

    def finish(self, outputs: list[np.ndarray]) -> None:
        self.outputs, self.finished = outputs, True
        self.wake.set()

    def fail(self, error: Exception) -> None:
        self.error, self.finished = error, True
        self.wake.set()


def _tasks(feeds: Feeds, rows: int, most: int) -> list[_Task]:
    if rows <= most:
        return [_Task(feeds, rows)]
    return [
        _Task(tuple(feed[at : at + most] for feed in feeds), min(most, rows - at))
        for at in range(0, rows, most)
    ]


class _Queue:
    """The calls of one key. The thread of a waiting call runs the batch, for itself and its batch-mates."""

    def __init__(self, parameters: BatchingParameters, key: Hashable, execute: Execute) -> None:
        self._parameters, self._key, self._execute = parameters, key, execute
        self._lock = threading.Lock()
        self._waiting: deque[_Task] = deque()
        self._rows = 0
        self._running = 0
        self._apart = False

    def run(self, feeds: Feeds, rows: int, *, wait: bool) -> list[np.ndarray]:
        tasks = _tasks(feeds, rows, self._parameters.rows)
        if wait:
            self._admit(tasks, rows)
            for task in tasks:
                self._wait_for(task)
        else:
            for task in tasks:
                self._finish([task])
        for task in tasks:
            if task.error is not None:
                raise task.error
        if len(tasks) == 1:
            return tasks[0].outputs
        return [np.concatenate(pieces) for pieces in zip(*(task.outputs for task in tasks), strict=True)]

    def _admit(self, tasks: list[_Task], rows: int) -> None:
        with self._lock:
            bound = self._parameters.rows * self._parameters.max_enqueued_batches
            if self._rows and self._rows + rows > bound:
                raise Overloaded(
                    "The batch scheduling queue to which this task was submitted is full: "
                    f"{self._rows} rows wait already, and max_enqueued_batches x max_batch_size is {bound}. "
                    "Try again later."
                )
            self._waiting.extend(tasks)
            self._rows += rows

    def _wait_for(self, task: _Task) -> None:
        while not task.finished:
            with self._lock:
                batch, seconds = self._next(task)
            if batch:
                self._process(batch)
            else:
                task.wake.wait(seconds)
                task.wake.clear()

    def _next(self, task: _Task) -> tuple[list[_Task], float | None]:
        """Return the batch this task's thread should run now; or none, and how long to wait at most."""
        if task.taken:
            return [], None
        head = self._waiting[0]
        seconds = seconds_until_due(
            self._parameters,
            rows=self._rows,
            running=self._running,
            waited=time.monotonic() - head.arrived,
        )
        if seconds == 0.0:
            return self._take(), None
        # One thread watches the clock, that of the oldest call.
        return [], seconds if task is head else None

    def _take(self) -> list[_Task]:
        batch: list[_Task] = []
        rows = 0
        shape = self._inner_shape(self._waiting[0])
        left: deque[_Task] = deque()
        for task in self._waiting:
            if rows + task.rows <= self._parameters.rows and self._inner_shape(task) == shape:
                batch.append(task)
                rows += task.rows
                task.taken = True
            else:
                left.append(task)
        self._waiting = left
        self._rows -= rows
        self._running += 1
        if self._waiting:
            self._waiting[0].wake.set()  # It is the oldest now, so its thread watches the clock.
        return batch

    def _inner_shape(self, task: _Task) -> tuple[object, ...]:
        if self._parameters.pad_variable_length_inputs:
            return tuple(feed.ndim for feed in task.feeds)
        return tuple(feed.shape[1:] for feed in task.feeds)

    def _process(self, batch: list[_Task]) -> None:
        try:
            self._finish(batch)
        finally:
            with self._lock:
                self._running -= 1
                heir = self._waiting[0] if self._waiting else None
            if heir is not None:
                heir.wake.set()

    def _finish(self, batch: list[_Task]) -> None:
        if self._apart or not self._run_together(batch):
            self._run_apart(batch)

    def _run_together(self, batch: list[_Task]) -> bool:
        """Run the batch in one call and finish its tasks; False: each has to be run alone."""
        rows = sum(task.rows for task in batch)
        feeds = merged([task.feeds for task in batch], padded_size(rows, self._parameters))
        try:
            outputs = self._execute(self._key, feeds)
        except Exception as error:  # noqa: BLE001  A model may raise anything, and every waiting call needs an answer.
            if len(batch) > 1 or len(feeds[0]) > rows:
                return False
            batch[0].fail(error)
            return True
        if any(output.ndim == 0 or len(output) != len(feeds[0]) for output in outputs):
            self._stop_batching(outputs)
            return False
        at = 0
        for task in batch:
            task.finish([output[at : at + task.rows] for output in outputs])
            at += task.rows
        return True

    def _run_apart(self, batch: list[_Task]) -> None:
        for task in batch:
            try:
                task.finish(self._execute(self._key, task.feeds))
            except Exception as error:  # noqa: BLE001  As above.
                task.fail(error)

    def _stop_batching(self, outputs: Sequence[np.ndarray]) -> None:
        self._apart = True
        shapes = ", ".join(str(list(output.shape)) for output in outputs)
        log.warning("not_batched", extra={"signature": str(self._key), "output_shapes": shapes})


def padded_size(rows: int, parameters: BatchingParameters) -> int:
    """Return the smallest allowed batch size that holds these rows."""
    return next((size for size in parameters.allowed_batch_sizes if size >= rows), rows)


def merged(parts: Sequence[Feeds], size: int) -> Feeds:
    """Return the feeds of several calls as those of one, of `size` rows.

    Rows that are missing are copies of the first one. Inner sizes that differ are filled up to the largest,
    each call's with its own first element.
    """
    return tuple(_merged_input(column, size) for column in zip(*parts, strict=True))


def _merged_input(arrays: Sequence[np.ndarray], size: int) -> np.ndarray:
    if len({array.shape[1:] for array in arrays}) > 1:
        inner = np.max([array.shape[1:] for array in arrays], axis=0)
        arrays = [_filled_up(array, tuple(inner)) for array in arrays]
    missing = size - sum(len(array) for array in arrays)
    if missing:
        arrays = [*arrays, np.repeat(arrays[0][:1], missing, axis=0)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _filled_up(array: np.ndarray, inner: tuple[int, ...]) -> np.ndarray:
    if array.shape[1:] == inner:
        return array
    # An empty array has no first element; what stands there then is zero, False, or an empty string.
    filler = array.flat[0] if array.size else (b"" if array.dtype == object else 0)
    whole = np.full((len(array), *inner), filler, array.dtype)
    whole[tuple(slice(size) for size in array.shape)] = array
    return whole


def _runs_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _rows(feeds: Feeds) -> int:
    """Return the size of the batch dimension that all feeds share; 0: there is none, or it is empty."""
    if not feeds or any(feed.ndim == 0 for feed in feeds):
        return 0
    sizes = {len(feed) for feed in feeds}
    return sizes.pop() if len(sizes) == 1 else 0
