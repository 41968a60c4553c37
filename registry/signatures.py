"""Reads the signatures of a SavedModel without TensorFlow.

`saved_model.pb` is a protocol buffer, and the way to the signatures leads through six kinds of messages.
Their fields are found by number in the encoded bytes; everything else, the graph above all, is passed over
unread, so a file of a gigabyte costs no memory.

References:
    https://protobuf.dev/programming-guides/encoding, TensorFlow's saved_model.proto, meta_graph.proto,
    tensor_shape.proto and types.proto.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import InvalidSavedModel

SERVING_TAG = "serve"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types: how the length of a field is known."""
_DTYPES = (
    *("invalid", "float32", "float64", "int32", "uint8", "int16", "int8", "string", "complex64", "int64"),
    *("bool", "qint8", "quint8", "qint32", "bfloat16", "qint16", "quint16", "uint16", "complex128"),
    *("float16", "resource", "variant", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "int4", "uint4", "int2", "uint2"),
    "float4_e2m1fn",
)
"""Names of TensorFlow's dtypes by their numbers in `types.proto`."""
_REF = 100
"""What is added to the number of a dtype for a reference to a variable."""


class MalformedMessage(ValueError):
    """The bytes are no protocol buffer of the expected kind."""


@dataclass(frozen=True)
class SavedModelFacts:
    """What a SavedModel says about itself."""

    signatures: Mapping[str, Any]
    """By name: `method_name`, and `inputs` and `outputs`, each by alias `{"dtype", "shape"}`, and
    `"optional": True` for an input with a default. The dtype's name is such as `float32`; the shape has None
    for an unknown size, and is None for an unknown rank."""
    tensorflow_version: str
    """That wrote it; empty when it does not say."""


def read_saved_model(directory: str | os.PathLike[str]) -> SavedModelFacts:
    """Return what the SavedModel in `directory` says of the graph that is served.

    Raises:
        InvalidSavedModel: there is no saved_model.pb, it cannot be read, or it holds no graph to serve.
    """
    path = Path(directory) / "saved_model.pb"
    if not path.is_file():
        raise InvalidSavedModel(str(directory), "it contains no saved_model.pb")
    if path.stat().st_size == 0:
        raise InvalidSavedModel(str(directory), "its saved_model.pb is empty")
    with path.open("rb") as file:
        # Not closed by hand: while an error is told its frames still hold views of the mapping.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        facts, tags = _served(content)
    except (MalformedMessage, UnicodeDecodeError) as error:
        problem = f"its saved_model.pb is damaged, or something else ({error})"
        raise InvalidSavedModel(str(directory), problem) from error
    if facts is None:
        found = "; ".join(", ".join(sorted(each)) or "none" for each in tags) or "no graph at all"
        raise InvalidSavedModel(str(directory), f"it has no graph with the tag 'serve' (tags: {found})")
    return facts


def read_signatures(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the signatures of the graph that is served, by name. Raises InvalidSavedModel."""
    return dict(read_saved_model(directory).signatures)


def _served(content: memoryview) -> tuple[SavedModelFacts | None, list[set[str]]]:
    """Return the facts of the graph tagged `serve`, and the tags of every graph."""
    all_tags: list[set[str]] = []
    for graph in _messages(content, 2):  # SavedModel.meta_graphs
        info = _first(graph, 1)  # MetaGraphDef.meta_info_def
        tags = set(_texts(info, 4))
        all_tags.append(tags)
        if SERVING_TAG in tags:
            version = next(_texts(info, 5), "")  # MetaInfoDef.tensorflow_version
            return SavedModelFacts(_signatures(graph), version), all_tags
    return None, all_tags


def _signatures(graph: memoryview) -> dict[str, Any]:
    entries = dict(_map(graph, 5))  # MetaGraphDef.signature_def
    return {
        # Names in double underscores are TensorFlow's own, such as the op that initialises the model.
        name: _signature(entries[name])
        for name in sorted(entries)
        if not name.startswith("__")
    }


def _signature(message: memoryview) -> dict[str, Any]:
    defaults = {alias for alias, _ in _map(message, 4)}
    inputs = _tensors(message, 1)
    return {
        "method_name": next(_texts(message, 3), ""),
        "inputs": {
            alias: {**tensor, "optional": True} if alias in defaults else tensor
            for alias, tensor in inputs.items()
        },
        "outputs": _tensors(message, 2),
    }


def _tensors(signature: memoryview, field: int) -> dict[str, Any]:
    infos = dict(_map(signature, field))
    return {alias: _tensor(infos[alias]) for alias in sorted(infos)}


def _tensor(message: memoryview) -> dict[str, Any]:
    number = next((value for field, value in _fields(message) if field == 2), 0)  # TensorInfo.dtype
    if not isinstance(number, int):
        raise MalformedMessage("a dtype is no number")
    number = number - _REF if number > _REF else number
    name = _DTYPES[number] if number < len(_DTYPES) else f"dtype {number}"
    return {"dtype": name, "shape": _shape(_first(message, 3))}


def _shape(message: memoryview) -> list[int | None] | None:
    if any(field == 3 and value for field, value in _fields(message)):  # TensorShapeProto.unknown_rank
        return None
    sizes = (_size(dimension) for dimension in _messages(message, 2))
    return [None if size < 0 else size for size in sizes]


def _size(dimension: memoryview) -> int:
    for field, value in _fields(dimension):
        if field == 1 and isinstance(value, int):
            return value - (1 << 64) if value >= 1 << 63 else value
    return 0


def _map(message: memoryview, field: int) -> Iterator[tuple[str, memoryview]]:
    """Yield the entries of a map from strings to messages."""
    for entry in _messages(message, field):
        yield next(_texts(entry, 1), ""), _first(entry, 2)


def _texts(message: memoryview, field: int) -> Iterator[str]:
    return (str(value, "utf-8") for value in _messages(message, field))


def _first(message: memoryview, field: int) -> memoryview:
    """Return the message in the field; where there is none, an empty one, as protocol buffers have it."""
    return next(_messages(message, field), memoryview(b""))


def _messages(message: memoryview, field: int) -> Iterator[memoryview]:
    for number, value in _fields(message):
        if number == field:
            if isinstance(value, int):
                raise MalformedMessage(f"field {field} is a number")
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of an encoded message: numbers, and what is delimited by length.

    Raises:
        MalformedMessage: the bytes end too early, or no field can begin so.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise MalformedMessage("a field has the number 0")
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
        elif kind == _BYTES:
            length, position = _varint(message, position)
            if length > end - position:
                raise MalformedMessage(f"field {number} is cut off")
            yield number, message[position : position + length]
            position += length
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
            if position > end:
                raise MalformedMessage(f"field {number} is cut off")
        else:
            raise MalformedMessage(f"field {number} has the unknown wire type {kind}")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise MalformedMessage("a number is cut off")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage("a number is too long")
