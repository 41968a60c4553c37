"""Counts requests at the gateway's doors, whatever runs the models behind them.

The names are TensorFlow Serving's, as in `serving.metrics`. REST knows statuses of HTTP only, where several
codes share one; of these the usual one is counted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.asgi import Answer, Answering, Headers
from serving.errors import Code, InvalidInput
from serving.gateway import model_spec
from serving.grpc_transport import at_once, runs_at_once
from serving.metrics import GRPC, REST, Metrics

PREDICTION = "/tensorflow.serving.PredictionService/"
COUNTED = tuple(f"{PREDICTION}{name}" for name in ("Predict", "Classify", "Regress", "MultiInference"))
"""The gRPC methods that are counted: those that run a model."""
_TARGET = re.compile(r"/v1/models/([^/:?]+)(?:/[^:?]*)?(?::(classify|regress|predict))?", re.IGNORECASE)
_CODES: Mapping[int, Code] = {
    200: Code.OK,
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    413: Code.INVALID_ARGUMENT,
    429: Code.RESOURCE_EXHAUSTED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


async def count_rest(
    answering: Answering, method: str, target: str, headers: Headers, body: bytes, metrics: Metrics
) -> Answer:
    """Have a request answered, and count it by what is answered."""
    found = _TARGET.match(target)
    if found is None:
        return await answering(method, target, headers, body)
    started = time.perf_counter()
    answer = await answering(method, target, headers, body)
    _record(found, answer, started, metrics)
    return answer


def count_rest_at_once(
    answering: Callable[[str, Headers, bytes], Answer | None],
    target: str,
    headers: Headers,
    body: bytes,
    metrics: Metrics,
) -> Answer | None:
    """Do the same with what may answer at once; what it leaves to others is not counted here."""
    started = time.perf_counter()
    answer = answering(target, headers, body)
    if answer is not None and (found := _TARGET.match(target)):
        _record(found, answer, started, metrics)
    return answer


def _record(found: re.Match[str], answer: Answer, started: float, metrics: Metrics) -> None:
    model, verb = unquote(found[1]), (found[2] or "status").lower()
    metrics.record(model, _CODES.get(answer[0], Code.INTERNAL).name)
    metrics.record_latency(model, verb, REST, time.perf_counter() - started)


def counted(method: str, handler: Any, metrics: Metrics) -> Any:
    """Return a handler of a gRPC method that does the same and counts."""
    answer = handler.unary_unary
    name = method.removeprefix(PREDICTION)

    def note(data: bytes, code: Any, started: float) -> None:
        model = model_name(data, name)
        if code in (None, grpc.StatusCode.OK):
            metrics.record(model, Code.OK.name)
            metrics.record_latency(model, name, GRPC, time.perf_counter() - started)
        else:
            metrics.record(model, code.name)

    async def later(waiting: Awaitable[Any], data: bytes, context: Any, started: float) -> Any:
        try:
            response = await waiting
        except BaseException:
            # Raised by `abort`, which has set the code, or by a client that is gone.
            note(data, context.code() or grpc.StatusCode.CANCELLED, started)
            raise
        note(data, context.code(), started)
        return response

    def call(data: bytes, context: Any) -> Any:
        started = time.perf_counter()
        response = answer(data, context)
        if hasattr(response, "__await__"):
            return later(response, data, context, started)
        note(data, context.code(), started)
        return response

    return grpc.unary_unary_rpc_method_handler(at_once(call) if runs_at_once(answer) else call)


def model_name(data: bytes, method: str) -> str:
    """Return the model that a serialized request names; empty: none."""
    try:
        if method == "MultiInference":
            tasks, _ = model_spec.read_tasks(data)
            return tasks[0][0].name if tasks else ""
        return _first_spec(data).name
    except (InvalidInput, DecodeError):
        return ""


def _first_spec(data: bytes) -> ModelSpec:
    # Nearly every client writes the spec first, and then the tensors need not be copied to find it.
    if len(data) > 1 and data[0] == 0x0A and data[1] < 0x80:
        return ModelSpec.FromString(data[2 : 2 + data[1]])
    return model_spec.read_spec(data)[0]
