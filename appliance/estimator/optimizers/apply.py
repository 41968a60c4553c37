"""From what users give as an optimizer to an operation that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.optimizers.base import GraphOptimizer, current_training_scope, gradients
from appliance.estimator.optimizers.keras3 import from_keras, is_keras
from appliance.estimator.optimizers.rules import SGD, Adagrad, Adam, Ftrl, RMSprop
from appliance.estimator.optimizers.settings import from_settings

NAMES: Mapping[str, Callable[..., GraphOptimizer]] = {
    "Adagrad": Adagrad,
    "Adam": Adam,
    "Ftrl": Ftrl,
    "RMSProp": RMSprop,
    "SGD": SGD,
}


def get_optimizer(optimizer: Any, learning_rate: float | None = None) -> Any:
    """Return an optimizer for the current graph.

    Args:
        optimizer: 'Adagrad', 'Adam', 'Ftrl', 'RMSProp' or 'SGD'; a dict with such a `name`, the
            `learning_rate` (a number, or a dict with the `name` and the arguments of a Keras schedule) and
            other arguments, such as `global_clipnorm`; a `tf.compat.v1.train.Optimizer`; a Keras 3
            optimizer (`tf.keras.optimizers.*`), of which only the settings are used, so that one object
            serves many graphs; an object in the style of Keras 2 (`get_updates`, `iterations`); or a callable
            without arguments that returns any of these, called in the current graph.
        learning_rate: for a name, or a dict without one; otherwise the optimizer's own default.

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
    if isinstance(optimizer, Mapping):
        return from_settings(optimizer, NAMES, learning_rate)
    if callable(optimizer) and (isinstance(optimizer, type) or not hasattr(optimizer, "get_updates")):
        optimizer = optimizer()
    if isinstance(optimizer, GraphOptimizer):
        return optimizer.clone()
    if is_keras(optimizer):
        return from_keras(optimizer)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer) or hasattr(optimizer, "get_updates"):
        return optimizer
    raise ValueError(
        f"The optimizer {optimizer!r} of type {type(optimizer).__name__} is not one. Give a name "
        f"({', '.join(sorted(NAMES))}), a tf.keras.optimizers or tf.compat.v1.train optimizer, or a callable "
        "without arguments that returns one."
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
        return optimizer.apply_gradients(grads_and_vars, global_step=step)
    if count:
        step = tf.compat.v1.train.get_or_create_global_step()
        if not isinstance(optimizer, GraphOptimizer) or optimizer.iterations is not step:
            optimizer.iterations = step
    if isinstance(optimizer, GraphOptimizer):
        return optimizer.apply_gradients(grads_and_vars)
    with tf.name_scope(current_training_scope()):
        return tf.group(*optimizer.get_updates(loss, [variable for _, variable in grads_and_vars]))


def minimize(
    loss: tf.Tensor,
    optimizer: Any,
    variables: Sequence[Any] | None = None,
    loss_reduction: str = "sum_over_batch_size",
) -> Any:
    """Return the train_op that moves `variables` against the gradient of `loss` and counts the global step.

    Args:
        loss: a scalar.
        optimizer: anything that `get_optimizer` takes: a name, a Keras or a `tf.compat.v1.train` optimizer.
        variables: the variables of the graph or of Keras layers to train; None: all trainable ones. Those
            that the loss does not depend on stay as they are.
        loss_reduction: `sum` when the loss is a sum over examples; it matters with several replicas only.

    Raises:
        ValueError: the loss depends on none of the variables, or the optimizer is none.
    """
    variables = [
        variable if isinstance(variable, tf.Variable) else variable.value
        for variable in (tf.compat.v1.trainable_variables() if variables is None else variables)
    ]
    scaled = scale_for_replicas(loss, loss_reduction)
    found = tf.gradients(scaled, variables) if variables else []
    pairs = [pair for pair in zip(found, variables, strict=True) if pair[0] is not None]
    if not pairs:
        raise ValueError(
            f"The loss depends on none of the {len(variables)} trainable variables: there is nothing to "
            "train. Check that the loss is made from the outputs of the model."
        )
    return build_train_op(get_optimizer(optimizer), pairs, scaled)


def scale_for_replicas(loss: tf.Tensor, loss_reduction: str) -> tf.Tensor:
    """Divide a mean by the number of replicas, because their gradients are summed."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return loss * (1.0 / replicas) if replicas > 1 and loss_reduction != "sum" else loss


__all__ = ["NAMES", "build_train_op", "get_optimizer", "gradients", "minimize", "scale_for_replicas"]
