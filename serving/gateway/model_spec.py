"""Reads and replaces the ModelSpec of a serialized request without parsing the rest of it.

In PredictRequest, ClassificationRequest, RegressionRequest, GetModelMetadataRequest and GetModelStatusRequest
the spec is field 1; in MultiInferenceRequest field 1 is the repeated task, whose own field 1 is the spec. The
tensors, which make up the bytes, are copied once and never looked at.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.errors import InvalidInput

_SPEC_TAG = 0x0A  # field 1, length-delimited
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_VARINT_BYTES = 10


def read_spec(message: bytes) -> tuple[ModelSpec, bytes]:
    """Return the ModelSpec in field 1 of a serialized request, and the request without it.

    Raises:
        InvalidInput: the bytes are no protobuf message, or have no ModelSpec.
    """
    specs, rest = _split(message)
    if not specs:
        raise InvalidInput("Missing ModelSpec")
    # A field that comes twice is merged, and merging is parsing the parts one after the other.
    return _parse(b"".join(specs)), rest


def write_spec(spec: ModelSpec, rest: bytes) -> bytes:
    """Return the request made of `rest` with `spec` as its field 1."""
    return _field(spec.SerializeToString()) + rest


def read_tasks(message: bytes) -> tuple[list[tuple[ModelSpec, bytes]], bytes]:
    """Return the tasks of a serialized MultiInferenceRequest, as spec and remainder, and all the rest.

    Raises:
        InvalidInput: the bytes are no protobuf message, or a task has no ModelSpec.
    """
    tasks, rest = _split(message)
    return [read_spec(task) for task in tasks], rest


def write_tasks(tasks: list[tuple[ModelSpec, bytes]], rest: bytes) -> bytes:
    """Return the MultiInferenceRequest made of these."""
    return b"".join(_field(write_spec(spec, remainder)) for spec, remainder in tasks) + rest


def _parse(data: bytes) -> ModelSpec:
    try:
        return ModelSpec.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"Cannot parse the request's ModelSpec: {error}.") from error


def _field(payload: bytes) -> bytes:
    size, prefix = len(payload), bytearray((_SPEC_TAG,))
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + payload


def _split(message: bytes) -> tuple[list[bytes], bytes]:
    """Return the payloads of field 1, and everything else in its order."""
    payloads: list[bytes] = []
    others: list[memoryview] = []
    view, position, kept_from = memoryview(message), 0, 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 2:
            size, position = _varint(message, position)
            end = position + size
            if tag == _SPEC_TAG:
                payloads.append(message[position:end])
                others.append(view[kept_from:start])
                kept_from = end
        elif kind == 0:
            _, end = _varint(message, position)
        elif kind in _FIXED_BYTES:
            end = position + _FIXED_BYTES[kind]
        else:
            raise InvalidInput(
                f"Cannot parse the request: wire type {kind} at byte {start} is in none of its messages."
            )
        if end > len(message):
            raise InvalidInput(f"Cannot parse the request: field at byte {start} ends after the last byte.")
        position = end
    others.append(view[kept_from:])
    return payloads, b"".join(others)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and the position after it."""
    value = 0
    for count, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    raise InvalidInput(f"Cannot parse the request: no number at byte {position}.")
