"""Checks of what callers give: names, actors, and values that must fit into JSON on every database."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from registry.errors import InvalidInput, InvalidName

UNKNOWN_ACTOR = "unknown"
"""The actor of a change that came without one."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Safe as a directory, in a URL, and in a TensorFlow Serving config."""
LABEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
"""Begins with a letter, so that a label is never mistaken for a version number."""


def check_model_name(name: str) -> str:
    """Return `name`. Raises InvalidName when it does not match `MODEL_NAME`."""
    if not isinstance(name, str) or not MODEL_NAME.fullmatch(name):
        raise InvalidName("model", name, MODEL_NAME.pattern)
    return name


def check_label_name(name: str) -> str:
    """Return `name`. Raises InvalidName when it does not match `LABEL_NAME`."""
    if not isinstance(name, str) or not LABEL_NAME.fullmatch(name):
        raise InvalidName("label", name, LABEL_NAME.pattern)
    return name


def check_actor(actor: str) -> str:
    """Return `actor`. Raises InvalidInput when it is empty: the history must say who did it."""
    check_text(actor, "the actor")
    if not actor.strip():
        raise InvalidInput(
            f"Cannot record a change without an actor; got {actor!r}. Pass who does it, as in actor='ada'."
        )
    return actor


def check_text(text: str, where: str) -> str:
    """Return `text`. Raises InvalidInput when it holds NUL or half a surrogate pair, which nobody stores."""
    if storable(text) != text:
        raise InvalidInput(f"Cannot store {where}: {text!r} contains NUL or characters that are not Unicode.")
    return text


def storable(text: str) -> str:
    """Return `text` with a mark in place of whatever no database stores."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def plain(value: Any, where: str) -> Any:
    """Return `value` as JSON can hold it: NumPy scalars as numbers, tuples as lists, infinities as text.

    Raises:
        InvalidInput: something in it has no JSON form; the message says where.
    """
    if isinstance(value, str):
        return check_text(value, where)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInput(f"Cannot store {where}: the key {key!r} is no string.")
            check_text(key, f"a key of {where}")
        return {key: plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) == 1:
        return plain(item(), where)
    raise InvalidInput(
        f"Cannot store {where}: {value!r} of type {type(value).__name__} has no JSON form. "
        "Pass numbers, strings, booleans, None, lists and mappings of them."
    )


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    """Return metrics as stored: nan and infinities as text, for PostgreSQL's JSON has none.

    Raises:
        InvalidInput: a metric is not a number.
    """
    stored = plain(metrics, "metrics")
    for name, value in stored.items():
        if isinstance(value, str) and not isinstance(metrics[name], str):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(f"Cannot store metrics[{name!r}]: {metrics[name]!r} is no number.")
        try:
            stored[name] = float(value)
        except OverflowError as error:
            raise InvalidInput(f"Cannot store metrics[{name!r}]: {error}.") from error
    return stored


def read_metrics(stored: Mapping[str, float | str]) -> dict[str, float]:
    """Return metrics as given to `plain_metrics`."""
    return {name: float(value) for name, value in stored.items()}


def plain_strings(values: Mapping[str, str], where: str) -> dict[str, str]:
    """Return `values` as a dictionary. Raises InvalidInput unless keys and values are strings."""
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"Cannot store {where}[{key!r}] = {value!r}: keys and values must be strings.")
        check_text(key + value, f"{where}[{key!r}]")
    return dict(values)
