"""Variables in the scope of a strategy: which are saved, and which are there once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.ops import resource_variable_ops

_KERAS_METRICS = "keras.src.metrics.metric"


def leave_out_copies() -> None:
    """Keep the copies of the variables of this graph out of the checkpoint: each is in it once, as a whole.

    TensorFlow does so itself, but not with a `tf.Variable`, as Keras layers make them.
    """
    saved = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    copies = {
        id(copy)
        for variable in saved
        if isinstance(variable, DistributedVariable)
        for copy in variable.values
    }
    saved[:] = [variable for variable in saved if id(variable) not in copies]


def one_copy_of_metrics(next_creator: Callable[..., Any], **settings: Any) -> Any:
    """Create a variable; one that is not of the model but of its metrics only once in this process.

    To be used with `tf.variable_creator_scope`.
    """
    local = tf.compat.v1.GraphKeys.LOCAL_VARIABLES in (settings.get("collections") or ())
    if not local and not _is_of_keras_metric():
        return next_creator(**settings)
    own = ("initial_value", "trainable", "collections", "validate_shape", "name", "dtype", "constraint")
    given = {name: settings[name] for name in own if name in settings}
    with tf.device("/cpu:0"):
        return resource_variable_ops.ResourceVariable(**given, shape=settings.get("shape"))


def _is_of_keras_metric() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != _KERAS_METRICS:
        frame = frame.f_back
    return frame is not None
