"""Requests recorded with a model, run before its version becomes available, so that no client pays for first
calls.

`assets.extra/tf_serving_warmup_requests` holds TFRecords of PredictionLog. References: TensorFlow Serving,
servables/tensorflow/saved_model_warmup.cc.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from serving import examples, operations, wire
from serving.errors import Code, InvalidInput, ModelFailed, Unsupported
from serving.servable import Servable, model_failed

log = logging.getLogger(__name__)

REQUESTS_PATH = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000


def warm_up(servable: Servable, model_path: Path, *, iterations: int = 1) -> int:
    """Run the model's recorded requests, each `iterations` times; return how many there were.

    The model name in a record is not looked at.

    Raises:
        ModelFailed: the file is damaged (DATA_LOSS), or a request fails in the graph.
        InvalidInput: more than 1,000 records, or a request the model does not take.
    """
    path = model_path / REQUESTS_PATH
    if not path.is_file():
        return 0
    count = 0
    for record in _records(path):
        count += 1
        if count > MAX_RECORDS:
            raise InvalidInput(
                f"Number of warmup records exceeds the maximum ({MAX_RECORDS}): {path}. Keep fewer."
            )
        for _ in range(iterations):
            _run(servable, _parsed(record, path))
    log.info("warmed_up", extra={"model": servable.name, "version": servable.version, "requests": count})
    return count


def _records(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.compat.v1.io.tf_record_iterator(str(path))
    except tf.errors.OpError as error:
        raise model_failed(error) from error


def _parsed(record: bytes, path: Path) -> Any:
    try:
        return prediction_log_pb2.PredictionLog.FromString(record)
    except DecodeError as error:
        raise ModelFailed(
            Code.INVALID_ARGUMENT, f"Failed to parse warmup record in {path}: {error}"
        ) from error


def _run(servable: Servable, record: Any) -> None:
    kind = record.WhichOneof("log_type")
    if kind == "predict_log":
        request = record.predict_log.request
        inputs = {alias: wire.to_array(proto, alias) for alias, proto in request.inputs.items()}
        servable.run(request.model_spec.signature_name, inputs, request.output_filter)
    elif kind == "classify_log":
        request = record.classify_log.request
        operations.classify(servable, request.model_spec.signature_name, examples.from_input(request.input))
    elif kind == "regress_log":
        request = record.regress_log.request
        operations.regress(servable, request.model_spec.signature_name, examples.from_input(request.input))
    elif kind == "multi_inference_log":
        request = record.multi_inference_log.request
        tasks = [operations.Task(task.model_spec.signature_name, task.method_name) for task in request.tasks]
        operations.multi_inference(servable, tasks, examples.from_input(request.input))
    else:
        raise Unsupported(f"Unsupported log_type for warmup: {kind}")
