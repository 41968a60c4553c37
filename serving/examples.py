"""tf.Example protos for classify and regress, from the protocol's Input message and from JSON.

Serialized examples are what the model's parser eats; a shared context is put before each of them, so that
the example's value of a feature wins over the context's (TensorFlow Serving, servables/tensorflow/util.cc).
"""

from __future__ import annotations

from typing import Any

from tensorflow.core.example import example_pb2

from serving.errors import InvalidInput
from serving.json_values import base64_bytes, is_base64, json_text, text_bytes, type_name


def from_input(message: Any) -> list[bytes]:
    """Return the serialized examples of an Input proto, each with the context before it.

    Raises:
        InvalidInput: there are none.
    """
    kind = message.WhichOneof("kind")
    if kind == "example_list":
        examples = [example.SerializeToString() for example in message.example_list.examples]
    elif kind == "example_list_with_context":
        context = message.example_list_with_context.context.SerializeToString()
        examples = [context + e.SerializeToString() for e in message.example_list_with_context.examples]
    else:
        examples = []
    if not examples:
        raise InvalidInput("Input is empty.")
    return examples


def from_json(document: dict[str, Any]) -> list[bytes]:
    """Return the serialized examples of a REST classify or regress body.

    An integer makes an int64 feature, a number with a point a float feature, true and false an int64
    feature, a string or `{"b64": ...}` a bytes feature.

    Raises:
        InvalidInput: `examples` is missing, empty or not a list of objects of features.
    """
    context = b""
    if "context" in document:
        context = _example(document["context"])
    if "examples" not in document:
        raise InvalidInput(
            f"JSON Value: {json_text(document)} "
            "When method is classify, key 'examples' is expected and was not found"
        )
    examples = document["examples"]
    if not isinstance(examples, list):
        raise InvalidInput(
            f"JSON Value: {json_text(document)} Expecting 'examples' value to be an list/array"
        )
    if not examples:
        raise InvalidInput(f"JSON Value: {json_text(document)} 'examples' value is an empty array")
    return [context + _example(value) for value in examples]


def _example(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise InvalidInput(f"Example must be JSON object but got JSON {type_name(value)}")
    example = example_pb2.Example()
    features = example.features.feature
    for name, content in value.items():
        try:
            feature = features[name]
        except UnicodeEncodeError as error:
            raise InvalidInput(f"Feature name {name!r} is not UTF-8.") from error
        for element in content if isinstance(content, list) else [content]:
            _add(feature, name, element)
    return example.SerializeToString()


def _add(feature: Any, name: str, value: Any) -> None:
    if isinstance(value, str) or is_base64(value):
        _list_of(feature, name, "bytes_list").append(
            text_bytes(value) if isinstance(value, str) else base64_bytes(value)
        )
    elif isinstance(value, float):
        _list_of(feature, name, "float_list").append(value)
    elif isinstance(value, bool | int):
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidInput(f"Feature: {name} has uint64 element. Only int64 is supported.")
        _list_of(feature, name, "int64_list").append(int(value))
    else:
        raise InvalidInput(f"Feature: {name} has element with unexpected JSON type: {type_name(value)}")


def _list_of(feature: Any, name: str, kind: str) -> Any:
    present = feature.WhichOneof("kind")
    if present not in (None, kind):
        expected = present.removesuffix("_list")
        raise InvalidInput(f"Unexpected element type in feature: {name} expecting type: {expected}")
    return getattr(feature, kind).value
