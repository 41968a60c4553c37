"""Answers of the REST protocol as JSON.

Floats always carry a point or an exponent, in the fewest digits that read back to the same value; NaN and
the infinities are bare tokens; a string output whose alias ends in `_bytes` is wrapped as base64, any other
is written as it is, UTF-8 or not. References: TensorFlow Serving, util/json_tensor.cc (MakeJsonFromTensors).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from serving import dtypes
from serving.errors import InvalidInput
from serving.operations import Classes, Values

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_PLAIN = frozenset("fdilq")
"""What orjson writes as it is, by `numpy.dtype.char`: float32, float64, int32 and int64."""


def predictions(outputs: Mapping[str, np.ndarray], *, row_format: bool) -> bytes:
    """Return the body of a predict answer: `predictions` (rows) or `outputs` (columns).

    Raises:
        InvalidInput: a dtype JSON cannot carry; in the row format, outputs without one common batch size.
    """
    key = b'{"predictions":' if row_format else b'{"outputs":'
    if len(outputs) == 1:
        ((alias, array),) = outputs.items()
        if array.dtype.char in _PLAIN and array.ndim and array.flags.c_contiguous:
            return key + _numbers(array) + b"}"
    if not outputs:
        raise InvalidInput("Cannot convert empty tensor map to JSON")
    arrays = {alias: _writable(array) for alias, array in outputs.items()}
    if row_format:
        _check_batch(arrays)
    if len(arrays) == 1:
        alias, array = next(iter(arrays.items()))
        return key + _tensor(alias, array) + b"}"
    return key + (_row_objects(arrays) if row_format else _columns(arrays)) + b"}"


def classifications(result: Classes) -> bytes:
    """Return the body of a classify answer: for each example a list of [label, score]."""
    some = result.labels if result.labels is not None else result.scores
    assert some is not None  # Classify has at least one of them.
    labels = np.full(some.shape, b"", object) if result.labels is None else result.labels
    scores = np.zeros(some.shape, np.float32) if result.scores is None else result.scores
    rows = []
    for row in zip(labels, scores, strict=True):
        classes = (
            b"[" + _string(label) + b"," + _number(score) + b"]" for label, score in zip(*row, strict=True)
        )
        rows.append(b"[" + b",".join(classes) + b"]")
    return b'{"results":[' + b",".join(rows) + b"]}"


def regressions(result: Values) -> bytes:
    """Return the body of a regress answer: one number for each example."""
    return b'{"results":' + _tensor("", result.values) + b"}"


def error(text: str) -> bytes:
    """Return the body of an error answer."""
    return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})


def _writable(array: np.ndarray) -> np.ndarray:
    dtype = dtypes.BY_NUMPY[array.dtype]
    if dtype.kind == "none":
        raise InvalidInput(
            f"Failed to write JSON value for tensor type: {dtype.name}. JSON has no such numbers; use gRPC."
        )
    if dtype.name in ("half", "bfloat16"):
        return array.astype(np.float32)
    return np.ascontiguousarray(array) if array.ndim else array


def _check_batch(arrays: Mapping[str, np.ndarray]) -> None:
    expected = -1
    for alias, array in arrays.items():
        if not array.ndim:
            raise InvalidInput(f"Tensor name: {alias} has no shape information ")
        if expected not in (-1, len(array)):
            raise InvalidInput(
                f"Tensor name: {alias} has inconsistent batch size: {len(array)} expecting: {expected}"
            )
        expected = len(array)


def _columns(arrays: Mapping[str, np.ndarray]) -> bytes:
    members = (orjson.dumps(alias) + b":" + _tensor(alias, array) for alias, array in arrays.items())
    return b"{" + b",".join(members) + b"}"


def _row_objects(arrays: Mapping[str, np.ndarray]) -> bytes:
    if all(array.dtype != object and _all_finite(array) for array in arrays.values()):
        rows = zip(*arrays.values(), strict=True)
        return orjson.dumps([dict(zip(arrays, row, strict=True)) for row in rows], option=_OPTIONS)
    columns = [
        [orjson.dumps(alias) + b":" + _tensor(alias, array[row, ...]) for row in range(len(array))]
        for alias, array in arrays.items()
    ]
    objects = (b"{" + b",".join(members) + b"}" for members in zip(*columns, strict=True))
    return b"[" + b",".join(objects) + b"]"


def _tensor(alias: str, array: np.ndarray) -> bytes:
    if array.dtype == object:
        return _strings(array.tolist(), as_base64=alias.endswith("_bytes"))
    return _numbers(array if array.ndim else array[()])


def _numbers(array: Any) -> bytes:
    data = orjson.dumps(array, option=_OPTIONS)
    # orjson writes null for NaN and infinities only; looking for it is cheaper than asking numpy.
    return _name_non_finite(data, array) if b"null" in data else data


def _all_finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _name_non_finite(data: bytes, array: np.ndarray) -> bytes:
    """Put the tokens where orjson wrote `null` for what is not finite."""
    flat = array.ravel()
    tokens = [_token(float(value)) for value in flat[~np.isfinite(flat)]]
    pieces = data.split(b"null")
    return b"".join(chunk for pair in zip(pieces, [*tokens, b""], strict=True) for chunk in pair)


def _token(value: float) -> bytes:
    if value != value:
        return b"NaN"
    return b"Infinity" if value > 0 else b"-Infinity"


def _number(value: np.floating[Any]) -> bytes:
    return orjson.dumps(value, option=_OPTIONS) if np.isfinite(value) else _token(float(value))


def _strings(value: Any, *, as_base64: bool) -> bytes:
    """Write nested lists of bytes."""
    if isinstance(value, list):
        return b"[" + b",".join(_strings(element, as_base64=as_base64) for element in value) + b"]"
    if as_base64:
        return b'{"b64":"' + base64.b64encode(value) + b'"}'
    return _string(value)


def _string(value: bytes) -> bytes:
    try:
        return orjson.dumps(value.decode())
    except UnicodeDecodeError:
        text = json.dumps(value.decode("utf-8", "surrogateescape"), ensure_ascii=False)
        return text.encode("utf-8", "surrogateescape")
