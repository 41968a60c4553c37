"""TrainSpec and EvalSpec: the two halves of `train_and_evaluate`."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from appliance.estimator.exporters import Exporter, validate_exporters


class _TrainFields(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainFields):
    """The training half of `train_and_evaluate` (`tf.estimator.TrainSpec`)."""

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> "TrainSpec":
        """Check the arguments and make the spec.

        Args:
            input_fn: as for `Estimator.train`.
            max_steps: the global step to train to; None trains until the input ends.
            hooks: `SessionRunHook`s for the training.
            saving_listeners: `CheckpointSaverListener`s, told of each checkpoint.

        Raises:
            ValueError: `max_steps` is not positive.
            TypeError: an argument is of another type.
        """
        _check_input_fn(input_fn)
        if max_steps is not None and max_steps <= 0:
            raise ValueError(f"max_steps must be positive, or None. Received: {max_steps!r}.")
        return super().__new__(
            cls,
            input_fn,
            max_steps,
            validate_hooks(hooks),
            _instances(saving_listeners, tf.compat.v1.train.CheckpointSaverListener, "saving_listeners"),
        )


class _EvalFields(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalFields):
    """The evaluation half of `train_and_evaluate`, with its exports (`tf.estimator.EvalSpec`)."""

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[Any] | None = None,
        exporters: Exporter | Iterable[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> "EvalSpec":
        """Check the arguments and make the spec.

        Args:
            input_fn: as for `Estimator.evaluate`.
            steps: batches of an evaluation; None evaluates all of the input.
            name: of the evaluation; its summaries go to `<model_dir>/eval_<name>`.
            hooks: `SessionRunHook`s for the evaluation.
            exporters: asked after each evaluation, in this order.
            start_delay_secs: wait before the first evaluation of a separate evaluator, in seconds.
            throttle_secs: least time between the starts of two evaluations, in seconds.

        Raises:
            ValueError: a number is out of range, or the names of the exporters clash.
            TypeError: an argument is of another type.
        """
        _check_input_fn(input_fn)
        if steps is not None and steps <= 0:
            raise ValueError(f"steps must be positive, or None. Received: {steps!r}.")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string, or None. Received: {name!r}.")
        if start_delay_secs < 0:
            raise ValueError(f"start_delay_secs must not be negative. Received: {start_delay_secs!r}.")
        if throttle_secs < 0:
            raise ValueError(f"throttle_secs must not be negative. Received: {throttle_secs!r}.")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            validate_hooks(hooks),
            validate_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def validate_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    """Return the hooks as a tuple.

    Raises:
        TypeError: one is not a `SessionRunHook`.
    """
    return _instances(hooks, tf.compat.v1.train.SessionRunHook, "hooks")


def _instances(items: Iterable[Any] | None, kind: type, argument: str) -> tuple[Any, ...]:
    given = tuple(items or ())
    for item in given:
        if not isinstance(item, kind):
            raise TypeError(f"{argument} must all be instances of {kind.__name__}. Received: {item!r}.")
    return given


def _check_input_fn(input_fn: object) -> None:
    if not callable(input_fn):
        raise TypeError(f"input_fn must be callable. Received: {input_fn!r}.")
