"""REST predict bodies to numpy and back: the row format (`instances`) and the column format (`inputs`).

Three ways in, fastest first, all with the same result: bodies of numbers alone are read by C straight into a
buffer (`serving.json_numbers`); any other, and all where that was not compiled, is parsed to Python lists,
which are flattened a level at a time and checked by their set of types; whatever those two do not take is
walked value by value, which also finds the error that TensorFlow Serving would report.
"""

from __future__ import annotations

import math
from array import array as c_array
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from serving import json_numbers, json_values, wire
from serving.dtypes import DType
from serving.errors import Code, InvalidInput, ServingError, Unsupported
from serving.json_values import base64_bytes, is_base64, json_text, refuse_type, text_bytes
from serving.servable import Signature, TensorSpec

_TOKENS: Mapping[str, set[type]] = {"float": {int, float}, "int": {int}, "bool": {bool}, "string": {str}}


class PredictBody:
    """A parsed predict body. `row_format` says which form the answer takes."""

    def __init__(self, body: bytes) -> None:
        """Parse it.

        Raises:
            InvalidInput: no JSON object, or `signature_name` is no string.
        """
        self._body = body
        self._document: dict[str, Any] | None = None
        self._numbers = numbers = json_numbers.read(body)
        if numbers is not None:
            self.signature_name, self.row_format = numbers[0], numbers[1]
            return
        document = self._parsed()
        name = document.get("signature_name", "")
        if not isinstance(name, str):
            raise InvalidInput(
                f"JSON Value: {json_text(document)} not formatted correctly. "
                "'signature_name' key must be a string value."
            )
        self.signature_name = name
        self.row_format = "instances" in document

    def tensors(self, signature: Signature) -> dict[str, np.ndarray]:
        """Return the inputs for a signature.

        Raises:
            InvalidInput: missing or extra names, ragged lists, values of the wrong type.
            Unsupported: a dtype that JSON cannot carry.
        """
        if not signature.inputs:
            raise InvalidInput(f"Failed to get input map for signature: {signature.name}")
        if self._numbers is not None:
            _, _, tensors, numbers = self._numbers
            inputs = json_numbers.inputs(tensors, numbers, signature)
            if inputs is not None:
                return inputs
        document = self._parsed()
        if "instances" in document:
            return _from_rows(_rows(document), signature)
        if "inputs" in document:
            return _from_columns(document["inputs"], signature)
        raise InvalidInput("Missing 'inputs' or 'instances' key")

    def _parsed(self) -> dict[str, Any]:
        if self._document is None:
            self._document = json_values.parse(self._body)
        return self._document


def _rows(document: dict[str, Any]) -> list[Any]:
    rows = document["instances"]
    if "inputs" in document:
        _refuse_form(
            document, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
        )
    if not isinstance(rows, list):
        _refuse_form(document, "Excepting 'instances' to be an list/array")
    if not rows:
        _refuse_form(document, "No values in 'instances' array")
    return rows


def _refuse_form(document: dict[str, Any], text: str) -> None:
    raise InvalidInput(f"JSON Value: {json_text(document)} {text}")


def _is_row_object(value: Any) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def _from_rows(rows: list[Any], signature: Signature) -> dict[str, np.ndarray]:
    specs = signature.inputs
    named = _is_row_object(rows[0])
    if len(specs) > 1 and not isinstance(rows[0], dict):
        raise InvalidInput(
            "instances is a plain list, but expecting list of objects as multiple input tensors required "
            f"as per tensorinfo_map. Inputs: {', '.join(sorted(specs))}."
        )
    for index, row in enumerate(rows):
        if _is_row_object(row) != named:
            got, expected = ("list", "object") if named else ("object", "value/list")
            raise InvalidInput(f"Expecting {expected} but got {got} at item {index} of input list")
        if named:
            _check_names(index, row, specs)
    inputs = {}
    for alias in sorted(specs) if named else [next(iter(specs))]:
        values = [row[alias] for row in rows] if named else rows
        array = _flatten(values, specs[alias].dtype)
        inputs[alias] = _walk_rows(values, alias, specs[alias], named) if array is None else array
    return inputs


def _check_names(index: int, row: dict[str, Any], specs: Mapping[str, TensorSpec]) -> None:
    if row.keys() == specs.keys():
        return
    for name in row:
        if name not in specs:
            raise InvalidInput(
                f"Failed to process element: {index} key: {name} of 'instances' list. Error: "
                f"INVALID_ARGUMENT: JSON object: does not have named input: {name}. "
                f"Inputs: {', '.join(sorted(specs))}."
            )
    raise InvalidInput(
        f"Failed to process element: {index} of 'instances' list. JSON object: {json_text(row)} "
        f"keys must be equal to: {','.join(sorted(specs))}"
    )


def _from_columns(value: Any, signature: Signature) -> dict[str, np.ndarray]:
    specs = signature.inputs
    if not _is_row_object(value):
        if len(specs) > 1:
            raise InvalidInput(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required "
                f"as per tensorinfo_map. Inputs: {', '.join(sorted(specs))}."
            )
        return {alias: _column(value, spec) for alias, spec in specs.items()}
    for alias in specs:
        if alias not in value:
            raise InvalidInput(f"Missing named input: {alias} in 'inputs' object.")
    return {alias: _column(value[alias], spec) for alias, spec in specs.items()}


def _column(value: Any, spec: TensorSpec) -> np.ndarray:
    array = _flatten(value, spec.dtype)
    return _walk(value, spec) if array is None else array


def _flatten(value: Any, dtype: DType | None) -> np.ndarray | None:
    """Return the tensor of a scalar or of rectangular lists of one kind of token; None when it is anything
    else."""
    if dtype is None or dtype.kind == "none":
        return None
    shape: list[int] = []
    flat = [value]
    while flat and type(flat[0]) is list:
        size = len(flat[0])
        if set(map(type, flat)) != {list} or (len(flat) > 1 and set(map(len, flat)) != {size}):
            return None
        shape.append(size)
        flat = flat[0] if len(flat) == 1 else list(chain.from_iterable(flat))
    if not set(map(type, flat)) <= _TOKENS[dtype.kind]:
        return None
    if dtype.kind == "string":
        strings = np.empty(len(flat), object)
        strings[:] = [text_bytes(text) for text in flat]
        return strings.reshape(shape)
    try:
        return _array(flat, dtype).reshape(shape)
    except (OverflowError, ValueError):
        return None


def _array(numbers: list[Any], dtype: DType) -> np.ndarray:
    if dtype.name == "float":
        # What is too large becomes infinite, as it should. numpy would warn, and to silence it costs as much
        # as all the rest of a small request.
        return np.frombuffer(c_array("f", numbers), np.float32)
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype.numpy)


def _walk_rows(rows: list[Any], alias: str, spec: TensorSpec, named: bool) -> np.ndarray:
    key = f" key: {alias}" if named else ""
    arrays: list[np.ndarray] = []
    for index, row in enumerate(rows):
        try:
            array = _walk(row, spec)
            _check_equal(arrays[0] if arrays else array, array)
        except ServingError as error:
            raise InvalidInput(
                f"Failed to process element: {index}{key} of 'instances' list. "
                f"Error: {Code(error.code).name}: {error}"
            ) from error
        arrays.append(array)
    return np.stack(arrays)


def _check_equal(first: np.ndarray, array: np.ndarray) -> None:
    if first.size != array.size:
        raise InvalidInput(f"Expecting tensor size: {first.size} but got: {array.size}")
    if first.shape != array.shape:
        raise InvalidInput(f"Expecting shape {_brackets(first.shape)} but got: {_brackets(array.shape)}")


def _brackets(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _walk(value: Any, spec: TensorSpec) -> np.ndarray:
    shape: list[int] = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    if len(shape) > wire.MAX_RANK:
        raise InvalidInput(
            f"JSON lists are nested {len(shape)} deep; a tensor has at most {wire.MAX_RANK} dimensions."
        )
    values: list[Any] = []
    _collect(value, 0, shape, spec, values)
    dtype = spec.dtype
    assert dtype is not None or not values  # Otherwise _scalar has refused the first of them.
    array = np.empty(len(values), object if dtype is None else dtype.numpy)
    with np.errstate(over="ignore"):
        array[:] = values
    return array.reshape(shape)


def _collect(value: Any, level: int, shape: list[int], spec: TensorSpec, values: list[Any]) -> None:
    if not isinstance(value, list):
        if level != len(shape):
            raise InvalidInput(
                f"JSON Value: {json_text(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        values.append(_scalar(value, spec))
        return
    if level >= len(shape):
        raise InvalidInput(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise InvalidInput(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for element in value:
        _collect(element, level + 1, shape, spec, values)


def _scalar(value: Any, spec: TensorSpec) -> Any:
    dtype = spec.dtype
    if dtype is None or dtype.kind == "none":
        raise Unsupported(f"Conversion of JSON Value: {json_text(value)} to type: {spec.dtype_name}")
    if dtype.kind == "string" and isinstance(value, dict):
        return base64_bytes(value)
    if type(value) not in _TOKENS[dtype.kind]:
        refuse_type(value, dtype.name)
    if dtype.kind == "string":
        return text_bytes(value)
    if dtype.kind == "int":
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= value <= limits.max:
            refuse_type(value, dtype.name)
    return _as_float(value) if dtype.kind == "float" else value


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
