"""Where work runs: quick work in the event loop's thread, slow work and work that could meet in the pool."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from serving.batching import BatchingParameters
from serving.dispatch import BATCHED_QUICK_SECONDS, LARGE_REQUEST, Dispatcher
from serving.errors import TimedOut
from serving.pace import QUICK_SECONDS, Pace


@pytest.fixture
def gathering() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher.suited_to(BatchingParameters(max_batch_size=4))
    yield dispatcher
    dispatcher.close()


def known(dispatcher: Dispatcher, seconds: float) -> None:
    """Let the dispatcher believe that work `m` of 10 bytes takes this long."""
    pace = Pace()
    for _ in range(3):
        pace.note(seconds)
    dispatcher._paces["m", (10).bit_length() >> 1] = pace


async def threads(dispatcher: Dispatcher, count: int) -> list[bool]:
    """Run work so often at once; tell of each whether it was done in the event loop's thread."""
    done = await asyncio.gather(*(dispatcher.run("m", 10, threading.get_ident) for _ in range(count)))
    return [thread == threading.get_ident() for thread in done]


def test_without_batches_quick_work_stays_in_the_event_loop() -> None:
    dispatcher = Dispatcher()
    known(dispatcher, QUICK_SECONDS / 2)
    assert asyncio.run(threads(dispatcher, 3)) == [True] * 3
    known(dispatcher, QUICK_SECONDS * 2)
    assert asyncio.run(threads(dispatcher, 3))[0] is False
    dispatcher.close()


@pytest.mark.parametrize(
    ("seconds", "count", "stays"),
    [
        (BATCHED_QUICK_SECONDS * 2, 1, True),
        (BATCHED_QUICK_SECONDS * 2, 4, False),
        (BATCHED_QUICK_SECONDS / 2, 4, True),
        (QUICK_SECONDS * 2, 1, False),
    ],
)
def test_with_batches_quick_work_stays_while_it_is_alone(
    gathering: Dispatcher, seconds: float, count: int, stays: bool
) -> None:
    known(gathering, seconds)
    assert asyncio.run(threads(gathering, count)) == [stays] * count


def test_there_is_a_thread_for_each_row_that_may_wait() -> None:
    parameters = BatchingParameters(max_batch_size=8, num_batch_threads=2, max_enqueued_batches=4)
    assert Dispatcher.suited_to(parameters)._pool._max_workers == 48
    assert Dispatcher.suited_to(parameters, 5)._pool._max_workers == 5
    assert Dispatcher.suited_to(BatchingParameters())._pool._max_workers == 512


def test_large_requests_always_leave_the_event_loop(gathering: Dispatcher) -> None:
    known(gathering, BATCHED_QUICK_SECONDS / 2)
    here = threading.get_ident()
    assert asyncio.run(gathering.run("m", LARGE_REQUEST, threading.get_ident)) != here


def test_an_answer_that_takes_too_long_is_given_up(gathering: Dispatcher) -> None:
    go = threading.Event()
    with pytest.raises(TimedOut, match=r"no answer within 0\.05 s"):
        asyncio.run(gathering.run("m", 10, lambda: go.wait(60), timeout=0.05))
    go.set()
    assert asyncio.run(gathering.run("m", 10, time.monotonic, timeout=60)) > 0
