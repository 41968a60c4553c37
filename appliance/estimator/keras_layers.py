"""Keras layers in a user's model_fn: names that are the same in every graph, and what layers assign."""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable

_KERAS_VARIABLES = "keras.src.backend.tensorflow.core"


@contextlib.contextmanager
def keras_in_graph() -> Iterator[list[Any]]:
    """Let the body use Keras layers in the default graph; yields the variables that they make.

    Keras numbers unnamed layers over the life of a process. In the body the numbers start anew, so that the
    variables of two graphs of the same model have the same names in the checkpoint.
    """
    made: list[Any] = []

    def create(next_creator: Any, **settings: Any) -> Any:
        owner = _keras_caller()
        if owner is None:
            return next_creator(**settings)
        settings["constraint"] = Constraint(owner)  # Keras leaves it to its own optimizers.
        if not owner.trainable and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            # Each replica moves its own averages; their mean is what is saved.
            floating = tf.as_dtype(settings["dtype"]).is_floating
            mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
            settings["synchronization"] = tf.VariableSynchronization.ON_READ
            settings["aggregation"] = mean if floating else first
        if settings.get("name") != owner.name:  # An optimizer that is named otherwise.
            variable = next_creator(**settings)
        else:
            # Scopes of the graph get other names when they are entered twice; paths in Keras do not.
            with tf.name_scope(""):
                variable = next_creator(**settings | {"name": owner.path})
        made.append(variable)
        return variable

    before = _counters()
    _set_counters({})
    try:
        with tf.variable_creator_scope(create):
            yield made
    finally:
        _set_counters(before)


class Constraint:
    """The constraint of a `keras.Variable`, which gets it after it has been made; false without any."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __bool__(self) -> bool:
        return self._owner.constraint is not None

    def __call__(self, value: Any) -> Any:
        """Return the value projected."""
        return self._owner.constraint(value) if self else value


def pending_updates(variables: Sequence[Any]) -> list[Any]:
    """Return the operations in which layers assign to their variables that are not trained.

    A BatchNormalization moves its averages, a Dropout its seed. In a graph these are operations that nothing
    runs: Keras 3 has no list of them, as Keras 2 had.
    """
    return [
        assignment
        for variable in variables
        if not variable.trainable and hasattr(variable, "handle")
        for assignment in assignments(variable)
    ]


def assignments(variable: Any) -> list[Any]:
    """Return the operations that assign to a variable, or to this replica's copy of it, but initially."""
    copies = variable.values if isinstance(variable, DistributedVariable) else (variable,)
    initial = {copy.initializer for copy in copies}
    return [
        consumer
        for consumer in variable.handle.consumers()
        if consumer.type.startswith("Assign") and consumer not in initial
    ]


def _keras_caller() -> Any:
    """Return the `keras.Variable` that is making its TensorFlow variable, or None if it is not one."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("tensorflow.", __name__)):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != _KERAS_VARIABLES:
        return None
    return frame.f_locals["self"]


def _counters() -> dict[str, int]:
    # A program that has not imported Keras has numbered nothing; importing it here would slow every start.
    if "keras" not in sys.modules:
        return {}
    return dict(_global_state().get_global_attribute("object_name_uids", {}))


def _set_counters(counters: dict[str, int]) -> None:
    if "keras" in sys.modules:
        counted = collections.defaultdict(int, counters)
        _global_state().set_global_attribute("object_name_uids", counted)


def _global_state() -> Any:
    return sys.modules["keras.src.backend.common.global_state"]
