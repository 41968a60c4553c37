"""TensorProto to numpy and back, without a Python object for each number of a large tensor.

`tensor_content` is read as a view of the message's bytes. The typed fields of fixed width (`float_val` and
its like) are contiguous in the serialized message, so large ones are cut out of it in one piece, and written
in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from tensorflow.core.framework import tensor_pb2

from serving import dtypes
from serving.errors import InvalidInput

MAX_RANK = 64
"""numpy holds no more dimensions (TensorFlow: 254)."""
MAX_REPEATED_BYTES = 1 << 31
"""A tensor that repeats its last value may not grow beyond this: a short message must not fill the memory."""
_IN_ONE_PIECE = 64
"""From this many values on, cutting the packed field out beats a list of Python numbers."""

_PACKED: Mapping[
    str, tuple[int, np.dtype[Any]]
] = {  # field -> (field number in TensorProto, type of its packed values)
    "float_val": (5, np.dtype("<f4")),
    "double_val": (6, np.dtype("<f8")),
    "scomplex_val": (9, np.dtype("<f4")),
    "dcomplex_val": (12, np.dtype("<f8")),
}
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def to_array(proto: Any, name: str) -> np.ndarray:
    """Return the tensor in a TensorProto; string tensors as objects (bytes). The result may be read-only.

    Fewer values than the shape asks for: the last one is repeated, and zeros stand for none at all, as
    TensorFlow does.

    Raises:
        InvalidInput: unknown dtype, impossible shape or sizes; the text names the tensor.
    """
    dtype = dtypes.BY_NUMBER.get(proto.dtype)
    if dtype is None:
        raise _unparsable(name, f"dtype {proto.dtype} is not one that can be sent")
    shape = _shape(proto, name)
    count = math.prod(shape)
    if proto.tensor_content:
        return _shaped(_from_content(proto.tensor_content, dtype, count, name), shape, name)
    values = _values(proto, dtype)
    if values.size != count:
        values = _resized(values, count, name)
    return _shaped(values, shape, name)


def _shaped(values: np.ndarray, shape: Sequence[int], name: str) -> np.ndarray:
    """Return values in a shape; numpy refuses sizes that overflow, also of a tensor that is empty."""
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise _unparsable(name, f"its shape {list(shape)} is too large") from error


def _unparsable(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"tensor parsing error: {name}. {why[0].upper()}{why[1:]}.")


def _shape(proto: Any, name: str) -> tuple[int, ...]:
    shape = tuple([dim.size for dim in proto.tensor_shape.dim])
    if len(shape) > MAX_RANK or proto.tensor_shape.unknown_rank or (shape and min(shape) < 0):
        raise _unparsable(name, f"the shape {shape[:8]} (rank {len(shape)}) is not that of a tensor")
    return shape


def _from_content(content: bytes, dtype: dtypes.DType, count: int, name: str) -> np.ndarray:
    if dtype is dtypes.STRING:
        return _strings_from_content(content, count, name)
    if len(content) != count * dtype.numpy.itemsize:
        raise _unparsable(
            name,
            f"tensor_content has {len(content)} bytes; {count} values of {dtype.name} "
            f"take {count * dtype.numpy.itemsize}",
        )
    return np.frombuffer(content, dtype.numpy)


def _strings_from_content(content: bytes, count: int, name: str) -> np.ndarray:
    """Decode TensorFlow's own coding of string tensors: all lengths as varints, then all bytes."""
    lengths, position = [], 0
    try:
        for _ in range(min(count, len(content))):
            length, position = _varint(content, position)
            lengths.append(length)
    except IndexError:
        lengths = []
    if len(lengths) != count or position + sum(lengths) != len(content):
        raise _unparsable(name, f"tensor_content does not hold {count} strings")
    strings = np.empty(count, object)
    for index, length in enumerate(lengths):
        strings[index] = content[position : position + length]
        position += length
    return strings


def _values(proto: Any, dtype: dtypes.DType) -> np.ndarray:
    field = getattr(proto, dtype.field)
    if dtype.field in _PACKED:
        number, packed = _PACKED[dtype.field]
        if len(field) >= _IN_ONE_PIECE:
            numbers = _cut_out(proto.SerializeToString(), number, packed)
        else:
            numbers = np.array(field[:], packed)
        if dtype.kind == "none":
            return numbers[: len(numbers) // 2 * 2].view(dtype.numpy)
        return numbers
    if dtype is dtypes.STRING:
        strings = np.empty(len(field), object)
        strings[:] = field[:]
        return strings
    if dtype.field == "half_val":
        return np.array(field[:], np.int64).astype(np.uint16).view(dtype.numpy)
    # Values outside a small type wrap, as they do in TensorFlow's own reading of int_val.
    wide = np.uint64 if dtype.field == "uint64_val" else np.int64
    return np.array(field[:], wide).astype(dtype.numpy, copy=False)


def _resized(values: np.ndarray, count: int, name: str) -> np.ndarray:
    if values.size > count:
        return values[:count]
    if count * values.itemsize > MAX_REPEATED_BYTES:
        raise _unparsable(name, f"{values.size} values were sent for a shape of {count}")
    fill: Any = values[-1] if values.size else (b"" if values.dtype == object else 0)
    resized = np.full(count, fill, values.dtype)
    resized[: values.size] = values
    return resized


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _cut_out(message: bytes, number: int, packed: np.dtype[Any]) -> np.ndarray:
    """Return the packed values of one field of a serialized TensorProto, which this process has just
    written."""
    pieces, position = [], 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 == _LENGTH_DELIMITED:
            length, position = _varint(message, position)
            if tag >> 3 == number:
                pieces.append(np.frombuffer(message, packed, length // packed.itemsize, position))
            position += length
        else:
            position = _skip(message, position, tag & 7)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _skip(message: bytes, position: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        return _varint(message, position)[1]
    return position + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)  # The marks of a group carry nothing.


def fill_proto(array: np.ndarray, proto: Any, *, as_content: bool = False) -> None:
    """Write a tensor into an empty TensorProto: typed fields, or `tensor_content` when asked.

    Every value is written, also when all are equal: that is how TensorFlow Serving answers.
    """
    dtype = dtypes.BY_NUMPY[array.dtype]
    header = _header(dtype.number, array.shape)
    if dtype is dtypes.STRING:
        proto.MergeFromString(header)
        proto.string_val.extend(array.ravel().tolist())
    elif as_content:
        proto.MergeFromString(header)
        proto.tensor_content = array.tobytes()
    elif dtype.field in _PACKED:
        number, _ = _PACKED[dtype.field]
        data = array.tobytes()
        if data:
            proto.MergeFromString(b"".join((header, _tag(number), _encode_varint(len(data)), data)))
        else:
            proto.MergeFromString(header)
    else:
        proto.MergeFromString(header)
        flat = array.ravel()
        numbers = flat.view(np.uint16) if dtype.field == "half_val" else flat
        getattr(proto, dtype.field).extend(numbers.tolist())


def _tag(number: int) -> bytes:
    return _encode_varint(number << 3 | _LENGTH_DELIMITED)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@lru_cache(maxsize=1024)
def _header(number: int, shape: tuple[int, ...]) -> bytes:
    proto = tensor_pb2.TensorProto(dtype=number)
    proto.tensor_shape.SetInParent()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto.SerializeToString()
