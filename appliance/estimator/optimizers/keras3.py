"""Keras 3 optimizers in a graph: as one of the known rules where there is one, otherwise run as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from appliance.estimator.optimizers.base import (
    GraphOptimizer,
    constrained,
    current_training_scope,
    sum_duplicates,
)
from appliance.estimator.optimizers.rules import SGD, Adagrad, Adam, Ftrl, RMSprop

_RULES: Mapping[str, tuple[Callable[..., GraphOptimizer], tuple[str, ...]]] = {
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
_BEYOND_THE_RULES = ("weight_decay", "use_ema", "gradient_accumulation_steps")


def is_keras(optimizer: Any) -> bool:
    """Tell whether this is a Keras 3 optimizer."""
    # Only a program that has imported Keras can hold one; importing it here would slow every start.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(optimizer, keras.optimizers.Optimizer)


def from_keras(optimizer: Any) -> GraphOptimizer:
    """Return a graph optimizer with the settings of a Keras 3 optimizer, which is left as it is.

    Raises:
        ValueError: it scales the loss.
    """
    kind = type(optimizer).__name__
    if kind == "LossScaleOptimizer" or optimizer.loss_scale_factor:
        raise ValueError(
            f"The optimizer {optimizer.name!r} scales the loss, as float16 needs, which is not supported. "
            "Use bfloat16, which needs no scaling: for a Keras model, the dtype policy 'mixed_bfloat16'."
        )
    forget_variables(optimizer)
    if kind not in _RULES or any(getattr(optimizer, name) for name in _BEYOND_THE_RULES):
        return KerasRule(optimizer)
    rule, names = _RULES[kind]
    settings = {name: getattr(optimizer, name) for name in (*names, *_CLIPPING)}
    if not re.fullmatch(rf"{kind}(_\d+)?", optimizer.name.replace("rm_sprop", "rmsprop"), re.IGNORECASE):
        settings["name"] = optimizer.name
    return rule(_learning_rate(optimizer), **settings)


class KerasRule(GraphOptimizer):
    """A Keras 3 optimizer that none of the rules here covers, such as AdamW or one with weight decay.

    Its own variables are checkpointed as `training/<class name>/...`, its step counter among them, beside the
    global step.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(0.0, type(optimizer).__name__)
        self._optimizer = optimizer

    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> tf.Operation:
        """See `GraphOptimizer`. One replica only.

        Raises:
            ValueError: the model is replicated by a distribution strategy.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"The Keras optimizer {self.name} cannot train {replicas} replicas here. Use Adagrad, Adam, "
                "Ftrl, RMSprop or SGD without weight decay, or a tf.compat.v1.train optimizer."
            )
        variables = [variable for _, variable in grads_and_vars]
        with tf.name_scope(current_training_scope()), tf.name_scope(self.name) as scope:
            with tf.variable_creator_scope(_named_under(scope)):
                own = self._for_this_graph()
                own.build(variables)

            # In a function, the assignments run in the order they are made, as Keras expects.
            @tf.function(autograph=False)
            def step(*gradients: Any) -> tf.Tensor:
                own.apply(list(gradients), variables)
                return own.iterations.value.read_value()

            stepped = step(*[_without_duplicates(gradient) for gradient, _ in grads_and_vars])
            done = tf.group(*(constrained(stepped.op, variable) for variable in variables))
            if self._iterations is None:
                return done
            with tf.control_dependencies([done]):
                return self._iterations.assign_add(1, read_value=False, name="count_step")

    def _for_this_graph(self) -> Any:
        rate = _learning_rate(self._optimizer)
        with context.eager_mode():
            if self._optimizer.iterations.value._in_graph_mode and not callable(rate):
                # Made by a callable in the graph: its rate's variable cannot be read; give it another.
                self._optimizer._learning_rate = sys.modules["keras"].Variable(rate)
            config = self._optimizer.get_config()
        return type(self._optimizer).from_config({**config, "learning_rate": rate})


def _without_duplicates(gradient: Any) -> Any:
    # Keras 3 squares what it is given: two halves of a row's gradient would not count as the whole.
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values, rows = sum_duplicates(gradient)
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _named_under(scope: str) -> Callable[..., Any]:
    def create(next_creator: Callable[..., Any], **settings: Any) -> Any:
        settings["name"] = f"{scope}{settings['name']}"
        with tf.name_scope(""):
            return next_creator(**settings)

    return create


def _learning_rate(optimizer: Any) -> Any:
    """Return the learning rate: a number, a schedule or a callable."""
    rate = optimizer._learning_rate
    if callable(rate):
        return rate
    variable = rate.value
    if variable._in_graph_mode:
        # Made inside a graph by a callable: it has no value yet, but a constant that it starts from.
        return float(tf.get_static_value(variable.initial_value))
    with context.eager_mode():
        return float(variable.numpy())


def forget_variables(optimizer: Any) -> None:
    """Take the variables that a Keras 3 optimizer made for itself out of the graph's collections.

    Made in a graph, it has variables for the learning rate and the step. Only its settings are read here, so
    in training these would be unused entries of the checkpoint, and otherwise be missing from it.
    """
    if not is_keras(optimizer):
        return
    own = {id(variable.value) for variable in optimizer.variables}
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    collection[:] = [variable for variable in collection if id(variable) not in own]
