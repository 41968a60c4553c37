"""Recorded requests of every kind are run before a version serves; what cannot be run fails the load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_serving.apis import inference_pb2, input_pb2, prediction_log_pb2

from serving.batching import BatchingParameters
from serving.errors import InvalidInput, ModelFailed, Unsupported
from serving.loading import Loader, LoadOptions
from serving.servable import Servable
from serving.warmup import MAX_RECORDS, REQUESTS_PATH, warm_up
from tests.serving.saved_models import CLASSIFY, REGRESS, copy_version

Log = prediction_log_pb2.PredictionLog


@pytest.fixture
def version(made: Path, tmp_path: Path) -> Path:
    return copy_version(made / "half_plus_two", tmp_path, 1)


@pytest.fixture(scope="module")
def half(made: Path) -> Iterator[Servable]:
    servable = Servable.load(made / "half_plus_two", name="half", version=1)
    yield servable
    servable.close()


def predict_log(*xs: float, model: str = "some_other_name") -> Log:
    log = Log()
    request = log.predict_log.request
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(xs, tf.float32))
    return log


def examples(x: float) -> input_pb2.Input:
    found = input_pb2.Input()
    found.example_list.examples.add().features.feature["x"].float_list.value.append(x)
    return found


def example_logs() -> list[Log]:
    classify, regress, several = Log(), Log(), Log()
    classify.classify_log.request.model_spec.signature_name = "classify"
    classify.classify_log.request.input.CopyFrom(examples(1.0))
    regress.regress_log.request.model_spec.signature_name = "regress"
    regress.regress_log.request.input.CopyFrom(examples(2.0))
    request = several.multi_inference_log.request
    request.input.CopyFrom(examples(3.0))
    for name, method in (("classify", CLASSIFY), ("regress", REGRESS)):
        task = inference_pb2.InferenceTask(method_name=method)
        task.model_spec.signature_name = name
        request.tasks.append(task)
    return [classify, regress, several]


def write(version: Path, *logs: Log) -> Path:
    path = version / REQUESTS_PATH
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())
    return path


def test_each_kind_of_request_is_run(version: Path, half: Servable) -> None:
    write(version, predict_log(1.0), *example_logs())
    before = {name: half.pace(name).calls for name in half.signatures}
    assert warm_up(half, version) == 4
    after = {name: half.pace(name).calls - before[name] for name in half.signatures}
    assert after == {"serving_default": 1, "classify": 1, "regress": 1, "scores_only": 0}


@pytest.mark.parametrize(("iterations", "runs"), [(1, 2), (3, 6)])
def test_each_request_is_run_so_often(version: Path, half: Servable, iterations: int, runs: int) -> None:
    write(version, predict_log(1.0), predict_log(2.0, 3.0))
    before = half.pace("serving_default").calls
    assert warm_up(half, version, iterations=iterations) == 2
    assert half.pace("serving_default").calls - before == runs


def test_a_thousand_requests_are_run_and_one_more_is_refused(version: Path, half: Servable) -> None:
    write(version, *[predict_log(1.0)] * MAX_RECORDS)
    assert warm_up(half, version) == MAX_RECORDS
    write(version, *[predict_log(1.0)] * (MAX_RECORDS + 1))
    with pytest.raises(InvalidInput, match="Number of warmup records exceeds the maximum"):
        warm_up(half, version)


@pytest.mark.parametrize(
    ("log", "error", "message"),
    [
        (Log(), Unsupported, "Unsupported log_type for warmup"),
        (Log(session_run_log=prediction_log_pb2.SessionRunLog()), Unsupported, "session_run_log"),
        (Log(predict_log=prediction_log_pb2.PredictLog()), InvalidInput, "input size does not match"),
    ],
)
def test_a_request_that_cannot_be_run_fails_the_load(
    version: Path, log: Log, error: type[Exception], message: str
) -> None:
    write(version, predict_log(1.0), log)
    with pytest.raises(error, match=message):
        Loader(LoadOptions())("half", 1, version)
    Loader(LoadOptions(enable_warmup=False))("half", 1, version).close()


def test_bytes_that_are_no_record_fail_the_load(version: Path, half: Servable) -> None:
    path = write(version, predict_log(1.0))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ModelFailed) as error:
        warm_up(half, version)
    assert error.value.code.name == "DATA_LOSS"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\xff\xff no log")
    with pytest.raises(ModelFailed, match="Failed to parse warmup record"):
        warm_up(half, version)


def test_a_batched_model_is_warmed_up_in_the_sizes_it_will_run(version: Path) -> None:
    write(version, predict_log(1.0, 2.0, 3.0))
    batching = BatchingParameters(8, allowed_batch_sizes=(8,))
    servable = Loader(LoadOptions(batching=batching, warmup_iterations=2))("half", 1, version)
    assert servable.pace("serving_default").calls == 2
    servable.close()
    write(version, predict_log(*[1.0] * 9))
    with pytest.raises(InvalidInput, match="Task size 9 is larger"):
        Loader(LoadOptions(batching=batching))("half", 1, version)
