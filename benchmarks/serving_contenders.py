"""What the serving benchmark compares: how each contender is started, and how it is asked.

The model server and the bare loops speak TensorFlow Serving's protocol; the peers each their own. All are
sent the same numbers: a `Call` says where, and makes the request body from an array.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

COLUMNS = 20
HIDDEN = (64, 32)
"""The shape of the model."""
PREDICT_METHOD = "/tensorflow.serving.PredictionService/Predict"


@dataclass(frozen=True)
class Call:
    """One kind of request: `target` is the path of REST or the method of gRPC; `body` makes its bytes from
    float32 `[rows, columns]`."""

    target: str
    body: Callable[[np.ndarray], bytes]


@dataclass(frozen=True)
class Contender:
    """A server to be measured. `command` makes its command line from (base path, REST port, gRPC port);
    `grpc` is None where it has none."""

    name: str
    command: Callable[[Path, int, int], list[str]]
    rest: Call
    grpc: Call | None

    def call(self, protocol: str) -> Call | None:
        """Return how to ask by `rest` or `grpc`."""
        return self.rest if protocol == "rest" else self.grpc


def rows_body(x: np.ndarray) -> bytes:
    """Return TensorFlow Serving's row format, which KServe's first protocol shares."""
    return orjson.dumps({"instances": x}, option=orjson.OPT_SERIALIZE_NUMPY)


def named_body(x: np.ndarray) -> bytes:
    """Return an object with the array under its input's name."""
    return orjson.dumps({"x": x}, option=orjson.OPT_SERIALIZE_NUMPY)


def inference_body(x: np.ndarray) -> bytes:
    """Return the Open Inference Protocol's REST form, with flat data."""
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.reshape(-1)}
    return orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)


def predict_proto(x: np.ndarray) -> bytes:
    """Return a serialized PredictRequest with `tensor_content`."""
    from tensorflow_serving.apis import predict_pb2

    from serving import wire

    request = predict_pb2.PredictRequest(model_spec={"name": "model"})
    wire.fill_proto(x, request.inputs["x"], as_content=True)
    return request.SerializeToString()


def inference_proto(x: np.ndarray) -> bytes:
    """Return a serialized ModelInferRequest of the Open Inference Protocol with raw contents, coded here by
    hand, so that the client needs none of the peers' packages."""
    shape = b"".join(_varint(size) for size in x.shape)
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, shape)
    return _field(1, b"model") + _field(5, tensor) + _field(7, x.tobytes())


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def _ours(base_path: Path, rest_port: int, grpc_port: int) -> list[str]:
    flags = [f"--rest_api_port={rest_port}", f"--port={grpc_port}", "--model_name=model"]
    return [sys.executable, "-m", "serving.model_server", *flags, f"--model_base_path={base_path}"]


def _bare(kind: str) -> Callable[[Path, int, int], list[str]]:
    def command(base_path: Path, rest_port: int, grpc_port: int) -> list[str]:
        arguments = [str(base_path / "1"), str(rest_port), str(grpc_port), kind]
        return [sys.executable, "-m", "benchmarks.serving_bare", *arguments]

    return command


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_REST, _GRPC = Call("/v1/models/model:predict", rows_body), Call(PREDICT_METHOD, predict_proto)

OURS = Contender("ours", _ours, _REST, _GRPC)
BARE = tuple(Contender(kind, _bare(kind), _REST, _GRPC) for kind in ("plain", "prepared"))
