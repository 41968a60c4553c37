"""Versions load, swap and unload without a gap, and a broken one never disturbs what serves."""

import gc
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from serving import warmup, wire
from serving.errors import FailedPrecondition, InvalidInput, NoVersions, ServableNotFound, UnknownLabel
from serving.manager import All, ModelConfig, ModelManager, Specific
from serving.policy import State
from tests.serving.model_server.conftest import DEADLINE
from tests.serving.saved_models import copy_version, corrupt_version

NewManager = Callable[..., ModelManager]
X = {"x": np.array([2.0], np.float32)}


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    copy_version(made / "half_plus_two", tmp_path / "m", 1)
    return tmp_path / "m"


def wait(manager: ModelManager, condition: Callable[[], bool]) -> None:
    assert manager.wait_for(condition, DEADLINE), f"not true within {DEADLINE} s"


def states(manager: ModelManager, name: str = "m") -> dict[int, State]:
    return {status.version: status.state for status in manager.status(name)}


def answer(manager: ModelManager, version: int | None = None, label: str | None = None) -> float:
    with manager.use("m", version, label) as servable:
        return float(servable.run("", X)["y"][0])


def serve(manager: ModelManager, *configs: ModelConfig) -> None:
    manager.apply(configs)
    wait(manager, lambda: manager.settled([config.name for config in configs]))


def test_a_new_version_replaces_the_old_one(base: Path, made: Path, new_manager: NewManager) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    assert answer(manager) == 3.0
    copy_version(made / "half_plus_three", base, 2)
    wait(manager, lambda: states(manager) == {2: State.AVAILABLE, 1: State.END})
    assert [status.version for status in manager.status("m")] == [2, 1]
    assert answer(manager) == 4.0
    with pytest.raises(ServableNotFound, match=r"Specific\(m, 1\). Versions of model 'm' available now: 2"):
        answer(manager, 1)


def test_a_version_in_use_is_closed_only_after_its_last_request(
    base: Path, made: Path, new_manager: NewManager
) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    with manager.use("m") as old:
        copy_version(made / "half_plus_three", base, 2)
        wait(manager, lambda: states(manager) == {2: State.AVAILABLE, 1: State.UNLOADING})
        assert answer(manager) == 4.0
        assert old.run("", X)["y"].tolist() == [3.0]
    wait(manager, lambda: states(manager)[1] is State.END)


def test_a_corrupt_version_leaves_the_old_one_serving_and_tells_why(
    base: Path, new_manager: NewManager
) -> None:
    manager = new_manager(max_load_retries=2)
    serve(manager, ModelConfig("m", base))
    corrupt_version(base, 2)
    wait(manager, lambda: states(manager).get(2) is State.END)
    broken, serving = manager.status("m")
    assert serving.state is State.AVAILABLE
    assert broken.error_code != 0
    assert "saved_model.pb" in broken.error_message
    assert answer(manager) == 3.0


def test_a_failed_version_is_tried_again_once_it_went_and_came_back(
    base: Path, made: Path, new_manager: NewManager
) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    corrupt_version(base, 2)
    wait(manager, lambda: states(manager).get(2) is State.END)
    shutil.rmtree(base / "2")
    copy_version(made / "half_plus_three", base, 3)
    wait(manager, lambda: manager.available("m") == [3])
    shutil.rmtree(base / "3")
    copy_version(made / "half_plus_two", base, 2)
    wait(manager, lambda: manager.available("m") == [2])
    assert manager.status("m", 2)[0].error_message == ""


def test_a_load_is_repeated_until_it_succeeds(base: Path, made: Path, new_manager: NewManager) -> None:
    """The version stays LOADING meanwhile; here the model is mended between two tries."""
    manager = new_manager(max_load_retries=1_000_000)
    corrupt_version(base, 2)
    manager.apply([ModelConfig("m", base)])
    wait(manager, lambda: states_or_none(manager) == {2: State.LOADING})
    shutil.copytree(made / "half_plus_three", base / "2", dirs_exist_ok=True)
    wait(manager, lambda: manager.available("m") == [2])


def states_or_none(manager: ModelManager) -> dict[int, State]:
    try:
        return states(manager)
    except NoVersions:
        return {}


def test_policies_keep_several_versions(base: Path, made: Path, new_manager: NewManager) -> None:
    copy_version(made / "half_plus_three", base, 2)
    manager = new_manager()
    serve(manager, ModelConfig("m", base, All()))
    wait(manager, lambda: manager.available("m") == [1, 2])
    assert (answer(manager), answer(manager, 1)) == (4.0, 3.0)
    manager.apply([ModelConfig("m", base, Specific((1,)))])
    wait(manager, lambda: manager.available("m") == [1])


def test_labels_name_available_versions_and_move(base: Path, made: Path, new_manager: NewManager) -> None:
    copy_version(made / "half_plus_three", base, 2)
    manager = new_manager()
    serve(manager, ModelConfig("m", base, All()))
    wait(manager, lambda: manager.available("m") == [1, 2])
    manager.apply([ModelConfig("m", base, All(), {"stable": 1, "canary": 2})])
    assert (answer(manager, label="stable"), answer(manager, label="canary")) == (3.0, 4.0)
    manager.apply([ModelConfig("m", base, All(), {"stable": 2})])
    assert answer(manager, label="stable") == 4.0
    with pytest.raises(UnknownLabel, match=r"label: canary. Labels of model 'm': stable"):
        answer(manager, label="canary")


def test_a_label_for_a_version_that_is_not_available_changes_nothing(
    base: Path, new_manager: NewManager
) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base, All()))
    manager.apply([ModelConfig("m", base, All(), {"stable": 1})])
    with pytest.raises(FailedPrecondition, match="version 7 of model m, which is not currently available"):
        manager.apply([ModelConfig("m", base, All(), {"stable": 7}), ModelConfig("other", base)])
    assert answer(manager, label="stable") == 3.0
    with pytest.raises(ServableNotFound, match="No model 'other' is configured"):
        manager.use("other")


def test_unused_labels_may_come_before_their_versions_when_allowed(
    base: Path, new_manager: NewManager
) -> None:
    manager = new_manager(labels_for_unavailable=True)
    serve(manager, ModelConfig("m", base, All(), {"stable": 1, "next": 2}))
    assert answer(manager, label="stable") == 3.0
    with pytest.raises(ServableNotFound, match=r"Specific\(m, 2\)"):
        answer(manager, label="next")
    with pytest.raises(FailedPrecondition, match="label is 'stable'"):
        manager.apply([ModelConfig("m", base, All(), {"stable": 9})])


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([ModelConfig("m", "/a"), ModelConfig("m", "/b")], "Duplicate model name"),
        ([ModelConfig("m", "a/b")], "to have an absolute path"),
    ],
)
def test_impossible_configurations_are_refused(
    new_manager: NewManager, configs: list[ModelConfig], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        new_manager().apply(configs)


def test_a_missing_base_path_freezes_nobody_and_is_served_when_it_comes(
    base: Path, made: Path, new_manager: NewManager
) -> None:
    manager = new_manager()
    late = base.parent / "late"
    manager.apply([ModelConfig("late", late), ModelConfig("m", base)])
    wait(manager, lambda: manager.available("m") == [1])
    with pytest.raises(NoVersions, match="Could not find any versions of model late"):
        manager.status("late")
    copy_version(made / "half_plus_two", late, 4)
    wait(manager, lambda: manager.available("late") == [4])


def test_a_base_path_that_goes_away_changes_nothing_but_an_emptied_one_unloads(
    base: Path, new_manager: NewManager
) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    gone = base.rename(base.parent / "gone")
    copy_version(gone / "1", base.parent / "clock", 1)
    serve(manager, ModelConfig("m", base), ModelConfig("clock", base.parent / "clock"))
    assert manager.available("m") == [1]
    shutil.rmtree(gone / "1")
    gone.rename(base)
    wait(manager, lambda: states(manager) == {1: State.END})


def test_other_names_than_numbers_are_not_versions(base: Path, new_manager: NewManager) -> None:
    for name in ("tmp", "-2", "3.5", "99999999999999999999"):
        (base / name).mkdir()
    (base / "1").rename(base / "007")
    manager = new_manager()
    serve(manager, ModelConfig("m", base, All()))
    assert states(manager) == {7: State.AVAILABLE}


def test_a_model_taken_out_and_put_back_serves_again(base: Path, new_manager: NewManager) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    manager.apply([])
    wait(manager, lambda: states(manager) == {1: State.END})
    with pytest.raises(ServableNotFound, match=r"Latest\(m\). Versions of model 'm' available now: none yet"):
        answer(manager)
    serve(manager, ModelConfig("m", base))
    assert answer(manager) == 3.0


def test_no_request_fails_while_versions_come_and_go(base: Path, made: Path, new_manager: NewManager) -> None:
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    stop, failures, seen = threading.Event(), [], set()

    def ask() -> None:
        while not stop.is_set():
            try:
                seen.add(answer(manager))
            except ServableNotFound as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2, 8):
        copy_version(made / ("half_plus_three" if number % 2 else "half_plus_two"), base, number)
        wait(manager, lambda number=number: manager.available("m") == [number])
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen == {3.0, 4.0}


def test_unloaded_models_leave_nothing_behind_for_the_garbage_collector(
    base: Path, new_manager: NewManager
) -> None:
    manager = new_manager()

    def come_and_go() -> int:
        serve(manager, ModelConfig("m", base))
        manager.apply([])
        wait(manager, lambda: states(manager) == {1: State.END})
        gc.collect()
        return len(gc.get_objects()) + gc.get_freeze_count()

    come_and_go()
    before = come_and_go()
    for _ in range(5):
        after = come_and_go()
    assert after - before < 500  # One graph has thousands.


def write_warmup(version: Path, *xs: float) -> None:
    path = version / warmup.REQUESTS_PATH
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for x in xs:
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.model_spec.name = "some other name"
            wire.fill_proto(np.array([x], np.float32), log.predict_log.request.inputs["x"])
            writer.write(log.SerializeToString())


def test_warm_up_requests_run_before_a_version_is_available(base: Path, new_manager: NewManager) -> None:
    write_warmup(base / "1", 1.0, 2.0)
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    with manager.use("m") as servable:
        assert servable.pace("serving_default").calls == 2


def test_damaged_warm_up_requests_fail_the_load(base: Path, new_manager: NewManager) -> None:
    write_warmup(base / "1", 1.0)
    path = base / "1" / warmup.REQUESTS_PATH
    path.write_bytes(path.read_bytes()[:-3])
    manager = new_manager()
    serve(manager, ModelConfig("m", base))
    assert manager.status("m")[0].error_code.name == "DATA_LOSS"
