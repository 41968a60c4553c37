"""The dual variables of training examples, in hash tables that are saved in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

_STATE = 4
_EMPTY, _DELETED = [0, 0], [1, 1]


class DualTable:
    """What SDCA knows of each example: four float32 under its 128-bit fingerprint.

    Checkpoint entries, as in tf.estimator: `ShardedMutableHashTable-<i>-of-<shards>-keys` and `-values`.

    Args:
        shards: how many tables share the examples.
    """

    def __init__(self, shards: int) -> None:
        # Saving reads the tables: it must not wait for anything of a training step.
        with tf.control_dependencies(None), tf.name_scope("sharded_mutable_hash_table"):
            names = [f"ShardedMutableHashTable-{i + 1}-of-{shards}" for i in range(shards)]
            self._tables = [self._table(name) for name in names]

    def _table(self, name: str) -> Any:
        table = tf.raw_ops.MutableDenseHashTableV2(
            empty_key=tf.constant(_EMPTY, tf.int64),
            deleted_key=tf.constant(_DELETED, tf.int64),
            value_dtype=tf.float32,
            value_shape=[_STATE],
            use_node_name_sharing=True,
            name=name,
        )
        key = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
        tf.compat.v1.add_to_collection(key, _SavedTable(table, name))
        return table

    def _shards_of(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.math.floormod(tf.abs(keys[:, 0]), len(self._tables)), tf.int32)

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the states `[batch, 4]` under the fingerprints int64 `[batch, 2]`; zeros for new ones."""
        if len(self._tables) == 1:
            return _find(self._tables[0], keys)
        shards = self._shards_of(keys)
        count = len(self._tables)
        found = [
            _find(table, part)
            for table, part in zip(self._tables, tf.dynamic_partition(keys, shards, count), strict=True)
        ]
        places = tf.dynamic_partition(tf.range(tf.shape(keys)[0]), shards, count)
        return tf.dynamic_stitch(places, found)

    def insert(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Return the operation that puts states under fingerprints."""
        shards, count = self._shards_of(keys), len(self._tables)
        own_keys = tf.dynamic_partition(keys, shards, count) if count > 1 else [keys]
        own_values = tf.dynamic_partition(values, shards, count) if count > 1 else [values]
        return tf.group(
            *(
                tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=k, values=v)
                for table, k, v in zip(self._tables, own_keys, own_values, strict=True)
            )
        )

    def values(self) -> tf.Tensor:
        """Return all states, `[examples, 4]`."""
        values = tf.concat([_exported(table)[1] for table in self._tables], axis=0)
        return tf.ensure_shape(values, [None, _STATE])

    def size(self) -> tf.Tensor:
        """Return how many examples have a state."""
        return tf.add_n([tf.raw_ops.LookupTableSizeV2(table_handle=table) for table in self._tables])


def _find(table: Any, keys: tf.Tensor) -> tf.Tensor:
    missing = tf.zeros([_STATE], tf.float32)
    return tf.raw_ops.LookupTableFindV2(table_handle=table, keys=keys, default_value=missing)


def _exported(table: Any) -> Sequence[tf.Tensor]:
    return tuple(tf.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=tf.int64, Tvalues=tf.float32))


class _SavedTable(saveable_object.SaveableObject):
    """What the Saver writes and reads of a table."""

    def __init__(self, table: Any, name: str) -> None:
        specs = [
            saveable_object.SaveSpec(tensor, "", f"{name}-{suffix}")
            for tensor, suffix in zip(_exported(table), ("keys", "values"), strict=True)
        ]
        super().__init__(table, specs, name)

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any) -> tf.Operation:
        """Return the operation that fills the table with what was saved."""
        keys, values = restored_tensors
        return tf.raw_ops.LookupTableImportV2(table_handle=self.op, keys=keys, values=values)
