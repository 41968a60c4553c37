"""Calls run together, and none is hurt by another: the rules, with a model made of numpy."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serving.batching import Batcher, BatchingParameters, merged, padded_size, seconds_until_due
from serving.errors import InvalidInput, Overloaded
from serving.runtime import EmbeddedRuntime

DEADLINE = 60.0


class Doubler:
    """Doubles its only input. It stops at a gate when told to, and refuses negative numbers."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, key: str, feeds: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        self.calls.append(list(feeds[0].shape))
        self.entered.release()
        assert self.gate.wait(DEADLINE)
        if (feeds[0] < 0).any():
            raise ValueError(f"negative: {feeds[0].min()}")
        return [np.asarray(feeds[0].sum())] if key == "sum" else [feeds[0] * 2]


class House:
    """A batcher over a doubler, and threads that call it."""

    def __init__(self, pool: ThreadPoolExecutor, **parameters: object) -> None:
        self.model = Doubler()
        self.batcher = Batcher(BatchingParameters(**parameters), self.model)
        self._pool = pool

    def ask(self, *rows: float, key: str = "double") -> Future[list[np.ndarray]]:
        return self._pool.submit(self.batcher.run, key, (np.array(rows),))

    def ask_array(self, array: np.ndarray) -> Future[list[np.ndarray]]:
        return self._pool.submit(self.batcher.run, "double", (array,))

    def hold(self) -> Future[list[np.ndarray]]:
        """Ask something that keeps the model busy until the gate opens."""
        busy = self.ask(0.0)
        assert self.model.entered.acquire(timeout=DEADLINE)
        return busy

    def until_waiting(self, rows: int, key: str = "double") -> None:
        queue = self.batcher._queues[key]
        done = threading.Event()
        while queue._rows < rows:
            assert not done.wait(0.001)


@pytest.fixture
def house() -> Callable[..., House]:
    with ThreadPoolExecutor(32) as pool:
        yield lambda **parameters: House(pool, **{"num_batch_threads": 1, **parameters})


def answer(future: Future[list[np.ndarray]]) -> list[float]:
    return future.result(DEADLINE)[0].tolist()


def test_a_lonely_call_runs_at_once_whatever_the_timeout(house: Callable[..., House]) -> None:
    lonely = house(batch_timeout_micros=3_600_000_000)
    lonely.model.gate.set()
    assert answer(lonely.ask(1.0, 2.0)) == [2.0, 4.0]
    assert lonely.model.calls == [[2]]


def test_calls_that_arrive_while_the_model_is_busy_run_together(house: Callable[..., House]) -> None:
    busy = house(max_batch_size=5)
    first = busy.hold()
    asked = [busy.ask(float(number)) for number in range(1, 8)]
    busy.until_waiting(7)
    busy.model.gate.set()
    assert answer(first) == [0.0]
    assert [answer(future) for future in asked] == [[2.0 * number] for number in range(1, 8)]
    assert busy.model.calls == [[1], [5], [2]]


def test_a_full_batch_runs_while_another_one_does(house: Callable[..., House]) -> None:
    wide = house(max_batch_size=3, num_batch_threads=2, batch_timeout_micros=3_600_000_000)
    wide.hold()
    asked = [wide.ask(float(number)) for number in (1, 2, 3)]
    assert wide.model.entered.acquire(timeout=DEADLINE)  # The second batch began; the first has not ended.
    wide.model.gate.set()
    assert [answer(future) for future in asked] == [[2.0], [4.0], [6.0]]
    assert wide.model.calls == [[1], [3]]


def test_a_batch_that_is_not_full_waits_no_longer_than_the_timeout(house: Callable[..., House]) -> None:
    wide = house(max_batch_size=3, num_batch_threads=2, batch_timeout_micros=1000)
    wide.hold()
    asked = wide.ask(1.0)
    assert wide.model.entered.acquire(timeout=DEADLINE)
    wide.model.gate.set()
    assert answer(asked) == [2.0]


@pytest.mark.parametrize(
    ("rows", "running", "waited", "seconds"),
    [
        (1, 0, 0.0, 0.0),
        (1, 1, 0.0, 0.002),
        (1, 1, 0.0015, 0.0005),
        (1, 1, 1.0, 0.0),
        (8, 1, 0.0, 0.0),
        (99, 2, 1.0, None),
    ],
)
def test_when_rows_are_due(rows: int, running: int, waited: float, seconds: float | None) -> None:
    parameters = BatchingParameters(8, 2000, num_batch_threads=2)
    due = seconds_until_due(parameters, rows=rows, running=running, waited=waited)
    assert due == (None if seconds is None else pytest.approx(seconds))


def test_the_error_of_one_call_does_not_reach_its_batch_mates(house: Callable[..., House]) -> None:
    busy = house(allowed_batch_sizes=(4, 8), max_batch_size=8)
    busy.hold()
    good, bad, other = busy.ask(1.0), busy.ask(-1.0), busy.ask(2.0)
    busy.until_waiting(3)
    busy.model.gate.set()
    assert answer(good) == [2.0]
    assert answer(other) == [4.0]
    with pytest.raises(ValueError, match=re.escape("negative: -1.0")):
        bad.result(DEADLINE)


def test_a_call_with_another_inner_shape_gets_a_batch_of_its_own(house: Callable[..., House]) -> None:
    busy = house()
    busy.hold()
    shapes = [(1, 2), (1, 3), (2, 2)]
    asked = [busy.ask_array(np.ones(shape)) for shape in shapes]
    busy.until_waiting(4)
    busy.model.gate.set()
    assert [future.result(DEADLINE)[0].shape for future in asked] == shapes
    assert sorted(busy.model.calls[1:]) == [[1, 3], [3, 2]]


def test_variable_lengths_are_filled_up_when_asked_for(house: Callable[..., House]) -> None:
    busy = house(pad_variable_length_inputs=True)
    busy.hold()
    asked = [busy.ask_array(np.array(rows)) for rows in ([[1.0, 2.0, 3.0]], [[4.0]])]
    flat = busy.ask(5.0)
    busy.until_waiting(3)
    busy.model.gate.set()
    assert [answer(future) for future in asked] == [[[2.0, 4.0, 6.0]], [[8.0, 8.0, 8.0]]]
    assert answer(flat) == [10.0]


@pytest.mark.parametrize(
    ("parts", "size", "expected"),
    [
        ([np.array([1, 2]), np.array([3])], 5, [1, 2, 3, 1, 1]),
        (
            [np.array([[b"a"]], object), np.array([[b"b", b"c"]], object)],
            2,
            [[b"a", b"a"], [b"b", b"c"]],
        ),
        ([np.zeros((1, 0), object), np.array([[b"b"]], object)], 2, [[b""], [b"b"]]),
        ([np.array([[True, False]]), np.zeros((1, 0), bool)], 2, [[True, False], [False, False]]),
    ],
)
def test_what_is_missing_is_filled_up(parts: list[np.ndarray], size: int, expected: list[object]) -> None:
    whole = merged([(part,) for part in parts], size)[0]
    assert whole.tolist() == expected
    assert whole.dtype == parts[0].dtype


def test_batches_have_an_allowed_size_and_answers_have_their_own(house: Callable[..., House]) -> None:
    sized = house(max_batch_size=8, allowed_batch_sizes=(2, 8))
    sized.model.gate.set()
    assert answer(sized.ask(1.0, 2.0, 3.0)) == [2.0, 4.0, 6.0]
    assert sized.model.calls == [[8]]
    assert [padded_size(rows, sized.batcher.parameters) for rows in (1, 2, 3, 8)] == [2, 2, 8, 8]


def test_too_many_rows_are_refused_or_taken_apart(house: Callable[..., House]) -> None:
    small = house(max_batch_size=2)
    with pytest.raises(InvalidInput, match="Task size 3 is larger than maximum input batch size 2"):
        small.ask(1.0, 2.0, 3.0).result(DEADLINE)
    split = house(max_batch_size=2, enable_large_batch_splitting=True)
    split.model.gate.set()
    assert answer(split.ask(1.0, 2.0, 3.0, 4.0, 5.0)) == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert split.model.calls == [[2], [2], [1]]


def test_rows_beyond_the_queue_are_refused(house: Callable[..., House]) -> None:
    busy = house(max_batch_size=2, max_enqueued_batches=2)
    busy.hold()
    asked = [busy.ask(1.0, 1.0), busy.ask(2.0, 2.0)]
    busy.until_waiting(4)
    with pytest.raises(Overloaded, match=r"queue to which this task was submitted is full: 4 rows wait"):
        busy.ask(3.0).result(DEADLINE)
    busy.model.gate.set()
    assert [answer(future) for future in asked] == [[2.0, 2.0], [4.0, 4.0]]


def test_a_model_without_batches_in_its_answer_is_run_apart(house: Callable[..., House]) -> None:
    whole = house(max_batch_size=4, allowed_batch_sizes=(4,))
    whole.model.gate.set()
    assert answer(whole.ask(1.0, 2.0, key="sum")) == 3.0
    assert answer(whole.ask(5.0, key="sum")) == 5.0
    assert whole.model.calls == [
        [4],
        [2],
        [1],
    ]  # The first time is told by the answer; from then on it is known.


@pytest.mark.parametrize("feeds", [(np.array(1.0),), (np.ones(2), np.ones(3)), (np.ones((0, 2)),)])
def test_what_has_no_common_batch_dimension_runs_alone(
    house: Callable[..., House], feeds: tuple[np.ndarray, ...]
) -> None:
    alone = house(max_batch_size=1)
    alone.model.gate.set()
    assert alone.batcher.run("double", feeds)[0].tolist() == (feeds[0] * 2).tolist()


def test_an_event_loop_never_waits_for_others(house: Callable[..., House]) -> None:
    busy = house(max_batch_size=2, allowed_batch_sizes=(2,))
    busy.hold()

    async def ask() -> list[np.ndarray]:
        threading.Timer(0.01, busy.model.gate.set).start()
        return busy.batcher.run("double", (np.array([3.0]),))

    assert asyncio.run(ask())[0].tolist() == [6.0]
    assert busy.model.calls == [[2], [2]]  # A batch of its own, of an allowed size.


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be at least 1; got 0"),
        ({"num_batch_threads": 0}, "num_batch_threads must be at least 1"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be at least 0"),
        ({"max_batch_size": 4, "allowed_batch_sizes": (2, 2, 4)}, "in increasing order"),
        ({"max_batch_size": 4, "allowed_batch_sizes": (2, 8)}, "last entry was 8; expected 4"),
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        BatchingParameters(**parameters)


def test_many_threads_get_their_own_answers(house: Callable[..., House]) -> None:
    crowd = house(max_batch_size=7, num_batch_threads=3, batch_timeout_micros=500)
    crowd.model.gate.set()
    asked = [crowd.ask(*np.arange(number % 4 + 1) + number) for number in range(400)]
    for number, future in enumerate(asked):
        assert answer(future) == (2.0 * (np.arange(number % 4 + 1) + number)).tolist()


def test_the_appliance_hands_its_parameters_to_the_embedded_runtime(tmp_path: Path) -> None:
    from appliance.api.server import make_runtime
    from appliance.settings import Settings

    file = tmp_path / "batching"
    file.write_text("max_batch_size { value: 4 }")
    runtime = make_runtime(Settings(home=tmp_path, batching_parameters_file=file))
    assert isinstance(runtime, EmbeddedRuntime)
    assert runtime.manager.loading.batching == BatchingParameters(max_batch_size=4)
    plain = make_runtime(Settings(home=tmp_path))
    assert isinstance(plain, EmbeddedRuntime)
    assert plain.manager.loading.batching is None
