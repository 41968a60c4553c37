"""The element types of tensors: TensorFlow's number and name, numpy's type, and the TensorProto field of
each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tensorflow.core.framework import types_pb2


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `number` is TensorFlow's DataType, `name` its DataTypeString, `field` the TensorProto field that holds
    values, and `kind` what JSON token carries it: `float`, `int`, `bool`, `string`, or `none` where JSON has
    no way.
    """

    number: int
    name: str
    numpy: np.dtype[Any]
    field: str
    kind: str


def _dtype(number: int, name: str, numpy: Any, field: str, kind: str) -> DType:
    return DType(number, name, np.dtype(numpy), field, kind)


_ALL = (
    _dtype(types_pb2.DT_FLOAT, "float", np.float32, "float_val", "float"),
    _dtype(types_pb2.DT_DOUBLE, "double", np.float64, "double_val", "float"),
    _dtype(types_pb2.DT_HALF, "half", np.float16, "half_val", "float"),
    _dtype(types_pb2.DT_BFLOAT16, "bfloat16", ml_dtypes.bfloat16, "half_val", "float"),
    _dtype(types_pb2.DT_INT8, "int8", np.int8, "int_val", "int"),
    _dtype(types_pb2.DT_INT16, "int16", np.int16, "int_val", "int"),
    _dtype(types_pb2.DT_INT32, "int32", np.int32, "int_val", "int"),
    _dtype(types_pb2.DT_INT64, "int64", np.int64, "int64_val", "int"),
    _dtype(types_pb2.DT_UINT8, "uint8", np.uint8, "int_val", "int"),
    _dtype(types_pb2.DT_UINT16, "uint16", np.uint16, "int_val", "int"),
    _dtype(types_pb2.DT_UINT32, "uint32", np.uint32, "uint32_val", "int"),
    _dtype(types_pb2.DT_UINT64, "uint64", np.uint64, "uint64_val", "int"),
    _dtype(types_pb2.DT_BOOL, "bool", np.bool_, "bool_val", "bool"),
    _dtype(types_pb2.DT_STRING, "string", np.object_, "string_val", "string"),
    _dtype(types_pb2.DT_COMPLEX64, "complex64", np.complex64, "scomplex_val", "none"),
    _dtype(types_pb2.DT_COMPLEX128, "complex128", np.complex128, "dcomplex_val", "none"),
)

BY_NUMBER: Mapping[int, DType] = {dtype.number: dtype for dtype in _ALL}
BY_NUMPY: Mapping[np.dtype[Any], DType] = {dtype.numpy: dtype for dtype in _ALL}

STRING = BY_NUMBER[types_pb2.DT_STRING]
FLOAT = BY_NUMBER[types_pb2.DT_FLOAT]


def name_of(number: int) -> str:
    """Return TensorFlow's name of a DataType number, known here or not."""
    known = BY_NUMBER.get(number)
    return known.name if known else types_pb2.DataType.Name(number).removeprefix("DT_").lower()
