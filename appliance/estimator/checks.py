"""Checks of what is given to an Estimator's verbs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_OVERRIDABLE = frozenset({"model_fn", "_create_and_assert_global_step", "latest_checkpoint"})


def check_overrides(subclass: type, estimator: type) -> None:
    """Refuse subclasses that change what Estimator does: tools rely on it.

    Raises:
        ValueError: `subclass` overrides a member of `estimator` that is not meant for it.
    """
    members = {name for name in vars(estimator) if not name.startswith("__")} - _OVERRIDABLE
    overridden = sorted(
        name
        for name in members
        if any(name in vars(base) for base in subclass.__mro__[: subclass.__mro__.index(estimator)])
    )
    if overridden:
        raise ValueError(
            "Subclasses of Estimator cannot override members of Estimator. "
            f"{subclass} does override {overridden}. Give it a method of another name, or a model_fn."
        )


def check_steps(steps: int | None, max_steps: int | None = None) -> None:
    """Check how long to run.

    Raises:
        ValueError: both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise ValueError(f"Can not provide both steps and max_steps. Given: {steps} and {max_steps}")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}")


def check_one_replica(model: str) -> None:
    """Check that a model whose steps cannot be summed over replicas is trained by one.

    Raises:
        ValueError: a strategy is training several.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            f"{model} is trained by one replica, but RunConfig.train_distribute makes {replicas}. Leave it "
            "out; a cluster with parameter servers, described in TF_CONFIG, can train it."
        )


def no_data(what: str) -> ValueError:
    """Return the error of an input_fn without data."""
    return ValueError(
        f"The input_fn gave no data to {what} with: its Dataset ended before the first batch. Check its "
        "files, filters, `take` and `skip`, and that `batch(..., drop_remainder=True)` leaves something."
    )


def check_writable(folder: str, what: str) -> None:
    """Check that files can be written to a folder, which is made if need be; other than local ones pass.

    Args:
        folder: a model_dir or a folder in it.
        what: the files, for the message.

    Raises:
        OSError: they cannot.
    """
    if "://" in folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"Cannot write {what} to the model_dir, in {folder!r}: {error}. Give another model_dir, or "
            "permission to write there."
        ) from error


def checked_hooks(hooks: Sequence[Any] | None) -> list[Any]:
    """Return the hooks as a new list.

    Raises:
        TypeError: one is no SessionRunHook.
    """
    checked = list(hooks or ())
    for hook in checked:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"Hooks must be a SessionRunHook, given: {hook}")
    return checked


def checked_listeners(listeners: Sequence[Any] | None) -> list[Any]:
    """Return the saving listeners as a new list.

    Raises:
        TypeError: they are no list or tuple of CheckpointSaverListeners.
    """
    if listeners is not None and not isinstance(listeners, list | tuple):
        raise TypeError(f"saving_listeners must be a list or a tuple, given: {listeners}")
    checked = list(listeners or ())
    for listener in checked:
        if not isinstance(listener, tf.compat.v1.train.CheckpointSaverListener):
            raise TypeError(f"saving_listeners must be a list of CheckpointSaverListener, given: {listener}")
    return checked
