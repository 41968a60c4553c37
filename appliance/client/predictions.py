"""Turns values into the JSON of TensorFlow Serving's REST protocol, and its answers into numpy arrays."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from appliance.client.errors import InvalidRequest
from appliance.client.transport import segment


def path_of(model: str, version: int | None, label: str | None) -> str:
    """Return the path of the predict call of a model, one version of it, or a label.

    Raises:
        InvalidRequest: both a version and a label are given.
    """
    if version is not None and label is not None:
        raise InvalidRequest(
            f"Give a version or a label, not both; given version {version} and label {label!r}.", "ambiguous"
        )
    where = (
        f"/versions/{segment(version)}"
        if version is not None
        else f"/labels/{segment(label)}"
        if label is not None
        else ""
    )
    return f"/v1/models/{segment(model)}{where}:predict"


def body_of(instances: Any, inputs: Any, signature_name: str | None) -> dict[str, Any]:
    """Return the request's JSON object, with `instances` (rows) or `inputs` (columns).

    Raises:
        InvalidRequest: not exactly one of the two is given.
    """
    if (instances is None) == (inputs is None):
        raise InvalidRequest(
            "Give either `instances` (a list of rows) or `inputs` (arrays by name).", "ambiguous"
        )
    body: dict[str, Any] = {} if signature_name is None else {"signature_name": signature_name}
    if instances is not None:
        body["instances"] = to_json(instances)
    else:
        body["inputs"] = to_json(inputs)
    return body


def to_json(value: Any) -> Any:
    """Return `value` with arrays as lists and bytes as `{"b64": ...}`."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, and what else behaves like them
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    return value


def from_json(answer: Mapping[str, Any]) -> Any:
    """Return the outputs of an answer: an array, or arrays by name when there are several outputs."""
    if "outputs" in answer:
        outputs = answer["outputs"]
        if _is_named(outputs):
            return {name: _array(value) for name, value in outputs.items()}
        return _array(outputs)
    rows = answer["predictions"]
    if rows and _is_named(rows[0]):
        return {name: _array([row[name] for row in rows]) for name in rows[0]}
    return _array(rows)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) != {"b64"}


def _array(value: Any) -> Any:
    import numpy as np

    plain = _without_b64(value)
    if _holds_text(plain):
        # Strings of any length, bytes among them, as TensorFlow's own arrays of strings are.
        return np.array(plain, dtype=object)
    return np.asarray(plain)


def _without_b64(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_b64(entry) for entry in value]
    if isinstance(value, Mapping):
        return base64.b64decode(value["b64"])
    return value


def _holds_text(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, str | bytes)
