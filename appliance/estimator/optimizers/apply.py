"""From what users give as an optimizer to an operation that trains."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from appliance.estimator.optimizers.base import GraphOptimizer, gradients
from appliance.estimator.optimizers.rules import SGD, Adagrad, Adam, Ftrl, RMSprop

NAMES: Mapping[str, Callable[..., GraphOptimizer]] = {
    "Adagrad": Adagrad,
    "Adam": Adam,
    "Ftrl": Ftrl,
    "RMSProp": RMSprop,
    "SGD": SGD,
}

_KERAS_SETTINGS: Mapping[str, tuple[Callable[..., GraphOptimizer], tuple[str, ...]]] = {
    "Adagrad": (Adagrad, ("initial_accumulator_value", "epsilon")),
    "Adam": (Adam, ("beta_1", "beta_2", "epsilon", "amsgrad")),
    "Ftrl": (
        Ftrl,
        (
            "learning_rate_power",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
            "beta",
        ),
    ),
    "RMSprop": (RMSprop, ("rho", "momentum", "epsilon", "centered")),
    "SGD": (SGD, ("momentum", "nesterov")),
}
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_UNSUPPORTED = ("weight_decay", "use_ema", "loss_scale_factor", "gradient_accumulation_steps")


def get_optimizer(optimizer: Any, learning_rate: float | None = None) -> Any:
    """Return an optimizer for the current graph.

    Args:
        optimizer: 'Adagrad', 'Adam', 'Ftrl', 'RMSProp' or 'SGD'; a `tf.compat.v1.train.Optimizer`; a Keras 3
            optimizer (`tf.keras.optimizers.*`), of which only the settings are used, so that one object
            serves many graphs; an object in the style of Keras 2 (`get_updates`, `iterations`); or a callable
            without arguments that returns any of these, called in the current graph.
        learning_rate: for a name; otherwise the optimizer's own default.

    Returns:
        A `GraphOptimizer`, or the v1 or Keras 2 style object as it was given.

    Raises:
        ValueError: the name is unknown, or the object is nothing of these.
    """
    if isinstance(optimizer, str):
        if optimizer not in NAMES:
            raise ValueError(
                f"Unsupported optimizer name: {optimizer!r}. Supported names are: {', '.join(sorted(NAMES))}."
            )
        return NAMES[optimizer]() if learning_rate is None else NAMES[optimizer](learning_rate)
    if callable(optimizer) and not hasattr(optimizer, "get_updates"):
        optimizer = optimizer()
        if _is_keras(optimizer):
            _forget_variables(optimizer)
    if isinstance(optimizer, GraphOptimizer):
        return optimizer.clone()
    if _is_keras(optimizer):
        return _from_keras(optimizer)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer) or hasattr(optimizer, "get_updates"):
        return optimizer
    raise ValueError(
        f"The optimizer {optimizer!r} of type {type(optimizer).__name__} is not one. Give a name "
        f"({', '.join(sorted(NAMES))}), "
        "a tf.keras.optimizers or tf.compat.v1.train optimizer, or a callable without arguments that returns "
        "one."
    )


def build_train_op(
    optimizer: Any, grads_and_vars: Sequence[tuple[Any, Any]], loss: tf.Tensor, count: bool = True
) -> Any:
    """Return the operation that applies the gradients.

    Args:
        optimizer: as `get_optimizer` returned it.
        grads_and_vars: pairs of gradient and variable, as `gradients` returns them.
        loss: the loss, for an optimizer in the style of Keras 2, which takes its own gradients.
        count: whether this optimizer advances the global step. One of a model's optimizers does; another
            counts its own `iterations`.

    Raises:
        RuntimeError: the optimizer counts something else than the global step already.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        step = tf.compat.v1.train.get_or_create_global_step() if count else None
        with tf.name_scope("training/"):
            return optimizer.apply_gradients(grads_and_vars, global_step=step)
    if count:
        step = tf.compat.v1.train.get_or_create_global_step()
        if not isinstance(optimizer, GraphOptimizer) or optimizer.iterations is not step:
            optimizer.iterations = step
    if isinstance(optimizer, GraphOptimizer):
        return optimizer.apply_gradients(grads_and_vars)
    with tf.name_scope("training/"):
        return tf.group(*optimizer.get_updates(loss, [variable for _, variable in grads_and_vars]))


def _is_keras(optimizer: Any) -> bool:
    # Only a program that has imported Keras can hold one; importing it here would slow every start.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(optimizer, keras.optimizers.Optimizer)


def _from_keras(optimizer: Any) -> GraphOptimizer:
    kind = type(optimizer).__name__
    if kind not in _KERAS_SETTINGS:
        raise ValueError(
            f"The Keras optimizer {kind} is not supported; supported are "
            f"{', '.join(sorted(_KERAS_SETTINGS))}. For others, give "
            "a tf.compat.v1.train optimizer, or an object with get_updates(loss, params) and iterations."
        )
    refused = {name: getattr(optimizer, name) for name in _UNSUPPORTED if getattr(optimizer, name)}
    if refused:
        raise ValueError(
            f"The settings {refused} of the Keras optimizer {kind} are not supported: leave them at their "
            "defaults."
        )
    rule, names = _KERAS_SETTINGS[kind]
    settings = {name: getattr(optimizer, name) for name in names}
    settings.update({name: getattr(optimizer, name) for name in _CLIPPING})
    default_name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
    if not re.fullmatch(rf"({default_name}|{kind.lower()})(_\d+)?", optimizer.name):
        settings["name"] = optimizer.name
    return rule(_learning_rate(optimizer), **settings)


def _learning_rate(optimizer: Any) -> Any:
    """Return a Keras 3 optimizer's learning rate: a number, a schedule or a callable."""
    rate = optimizer._learning_rate
    if callable(rate):
        return rate
    variable = rate.value
    if variable._in_graph_mode:
        # Made inside a graph by a callable: it has no value yet, but a constant that it starts from.
        return float(tf.get_static_value(variable.initial_value))
    with context.eager_mode():
        return float(variable.numpy())


def _forget_variables(optimizer: Any) -> None:
    """Take the variables that a Keras 3 optimizer made for itself out of the graph's collections.

    A callable is called in the model's graph, where Keras makes variables for the learning rate and the step.
    Only the settings are read here, so these would be two unused entries of every checkpoint.
    """
    own = {id(variable.value) for variable in optimizer.variables}
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    collection[:] = [variable for variable in collection if id(variable) not in own]


__all__ = ["NAMES", "build_train_op", "get_optimizer", "gradients"]
