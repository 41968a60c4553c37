"""Optimizers from plain values, as they stand in a YAML file: name, learning rate or its schedule, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.estimator.optimizers.base import GraphOptimizer

SCHEDULES = (
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
)


def from_settings(
    settings: Mapping[str, Any],
    rules: Mapping[str, Callable[..., GraphOptimizer]],
    learning_rate: float | None,
) -> GraphOptimizer:
    """Return the optimizer that `settings` describes.

    Args:
        settings: `name`, one of `rules`; optionally `learning_rate`, a number or the settings of a schedule
            (`name`, one of `SCHEDULES`, and its arguments); and any other argument of the optimizer, such as
            `global_clipnorm`, `clipnorm` or `clipvalue`.
        rules: optimizers by name.
        learning_rate: the default.

    Raises:
        ValueError: a name is unknown, or an argument is none of that optimizer or schedule.
    """
    options = dict(settings)
    name = options.pop("name", None)
    if name not in rules:
        raise ValueError(
            f"Unsupported optimizer name: {name!r} in {dict(settings)}. Supported names are: "
            f"{', '.join(sorted(rules))}."
        )
    rate = options.pop("learning_rate", learning_rate)
    if isinstance(rate, Mapping):
        rate = _schedule(rate)
    if rate is not None:
        options["learning_rate"] = rate
    return _made(rules[name], options, f"optimizer {name}")


def _schedule(settings: Mapping[str, Any]) -> Any:
    options = dict(settings)
    name = options.pop("name", None)
    if name not in SCHEDULES:
        raise ValueError(
            f"Unsupported learning rate schedule: {name!r} in {dict(settings)}. Supported names are: "
            f"{', '.join(SCHEDULES)}."
        )
    import keras

    return _made(getattr(keras.optimizers.schedules, name), options, f"schedule {name}")


def _made(kind: Callable[..., Any], options: dict[str, Any], what: str) -> Any:
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"The {what} cannot be made with {options}: {error}") from error
