"""What a Keras model holds eagerly, beside its variables: constants and lookup tables, for use in a graph."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

_HANDLES = (tf.resource, tf.variant)


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run the body as if no graph were being built."""
    with tf.Graph().as_default(), context.eager_mode():
        yield


_taking: weakref.WeakSet[Any] = weakref.WeakSet()
_convert = ops._EagerTensorBase.__tf_tensor__


def _tf_tensor(self: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Stand in for the conversion of an eager tensor; it makes a constant where the graph takes them."""
    if context.executing_eagerly() or self.dtype in _HANDLES or not _takes_eager_tensors():
        return _convert(self, dtype, name)
    return tf.convert_to_tensor(tf.constant(self.numpy(), name=name), dtype)


# TensorFlow refuses eager tensors in a graph, and nothing public changes that. They may be anywhere: in a
# layer, a regularizer, a loss. A graph that is not in `graph_constants` at the moment sees no difference.
ops._EagerTensorBase.__tf_tensor__ = _tf_tensor


def _takes_eager_tensors() -> bool:
    return tf.compat.v1.get_default_graph() in _taking


@contextlib.contextmanager
def graph_constants(model: Any) -> Iterator[None]:
    """Let a Keras model run in the default graph, with constants and tables of the graph's own.

    Eager tensors become constants: the mean of a Normalization, the factor of a regularizer. Lookup tables,
    such as that of a StringLookup, are replaced in the layers for the time of the body.
    """
    graph = tf.compat.v1.get_default_graph()
    replaced: list[tuple[Any, str, Any]] = []
    _taking.add(graph)
    try:
        for layer in model._flatten_layers(include_self=True):
            tables = {name: value for name, value in vars(layer).items() if _is_table(value)}
            for name, table in tables.items():
                replaced.append((layer, name, table))
                object.__setattr__(layer, name, _same_table(table))
        yield
    finally:
        _taking.discard(graph)
        for layer, name, table in replaced:
            object.__setattr__(layer, name, table)


def _is_table(value: Any) -> bool:
    return isinstance(value, tf.lookup.experimental.MutableHashTable | tf.lookup.StaticHashTable)


def _same_table(table: Any) -> Any:
    """Return a table of the default graph with what an eager table holds."""
    with eagerly():
        keys, values = (tensor.numpy() for tensor in table.export())
        default = table._default_value.numpy()
    rows = tf.lookup.KeyValueTensorInitializer(keys, values, table.key_dtype, table.value_dtype)
    return tf.lookup.StaticHashTable(rows, default)
