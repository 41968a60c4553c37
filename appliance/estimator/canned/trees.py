"""Decision trees as arrays, and their evaluation with plain TensorFlow operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Trees(NamedTuple):
    """The nodes of all trees of a forest, numbered through; as arrays, or as the variables that hold them.

    Fields:
        roots: int32 `[trees]`, the root of each tree.
        left, right: int32 `[nodes]`, the children; a leaf is its own child.
        feature: int32 `[nodes]`, which feature a node looks at; 0 at leaves.
        threshold: float32 `[nodes]`; examples whose feature is at most this go left.
        nan_left: bool `[nodes]`, whether examples whose feature is NaN go left.
        value: float64 `[nodes, outputs]`, the outputs of the examples that end here.
        depth: int32 scalar, the longest way from a root to a leaf.
    """

    roots: Any
    left: Any
    right: Any
    feature: Any
    threshold: Any
    nan_left: Any
    value: Any
    depth: Any

    @classmethod
    def leaf(cls, value: Sequence[float]) -> Trees:
        """Return one tree that gives every example the same outputs."""
        zero = np.zeros(1, np.int32)
        return cls(
            roots=zero,
            left=zero,
            right=zero,
            feature=zero,
            threshold=np.zeros(1, np.float32),
            nan_left=np.zeros(1, bool),
            value=np.array([value], np.float64),
            depth=np.int32(0),
        )

    @classmethod
    def of(cls, fitted: Sequence[Any], values: Sequence[np.ndarray]) -> Trees:
        """Number the nodes of scikit-learn's trees through.

        Args:
            fitted: the `tree_` of each tree.
            values: for each tree float64 `[its nodes, outputs]`.
        """
        counts = np.array([tree.node_count for tree in fitted])
        roots = np.concatenate([[0], np.cumsum(counts)[:-1]])
        first = np.repeat(roots, counts)
        itself = np.arange(counts.sum())
        left = np.concatenate([tree.children_left for tree in fitted])
        right = np.concatenate([tree.children_right for tree in fitted])
        leaf = left < 0
        return cls(
            roots=roots.astype(np.int32),
            left=np.where(leaf, itself, left + first).astype(np.int32),
            right=np.where(leaf, itself, right + first).astype(np.int32),
            feature=np.where(leaf, 0, np.concatenate([tree.feature for tree in fitted])).astype(np.int32),
            threshold=_rounded_down(np.concatenate([tree.threshold for tree in fitted])),
            nan_left=np.concatenate([tree.missing_go_to_left for tree in fitted]).astype(bool),
            value=np.concatenate(values).astype(np.float64),
            depth=np.int32(max(tree.max_depth for tree in fitted)),
        )


def _rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """Return the greatest float32 that is not above each threshold.

    scikit-learn compares float32 features with float64 thresholds: a feature is at most the threshold exactly
    when it is at most this.
    """
    nearest = thresholds.astype(np.float32)
    above = nearest.astype(np.float64) > thresholds
    return np.where(above, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def make_variables(initial: Trees) -> Trees:
    """Create the variables `forest/<field>`, which take arrays of any length."""
    # They are restored from checkpoints of any forest, so only the number of dimensions is fixed.
    with tf.name_scope(""), tf.init_scope():
        return Trees(
            **{
                field: tf.Variable(
                    array,
                    trainable=False,
                    name=f"forest/{field}",
                    shape=tf.TensorShape([None] * np.ndim(array)),
                )
                for field, array in initial._asdict().items()
            }
        )


def mean_outputs(trees: Trees, values: tf.Tensor, outputs: int) -> tf.Tensor:
    """Return the mean of what the trees say about each example, float64 `[batch, outputs]`.

    Args:
        trees: the variables of the forest.
        values: the features, float32 `[batch, features]`.
        outputs: how many outputs the forest has.
    """
    roots, left, right, feature, threshold, nan_left, value, depth = (each.read_value() for each in trees)
    batch, count = tf.shape(values)[0], tf.shape(roots)[0]

    def descend(level: tf.Tensor, nodes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seen = tf.gather(values, tf.gather(feature, nodes), batch_dims=1)
        goes_left = tf.where(
            tf.math.is_nan(seen), tf.gather(nan_left, nodes), seen <= tf.gather(threshold, nodes)
        )
        return level + 1, tf.where(goes_left, tf.gather(left, nodes), tf.gather(right, nodes))

    _, leaves = tf.while_loop(
        lambda level, _: level < depth,
        descend,
        (tf.constant(0), tf.tile(tf.expand_dims(roots, 0), tf.stack([batch, 1]))),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
    )
    # The mean over the trees, without an array of every tree's outputs for every example.
    example = tf.repeat(tf.range(batch), count)
    means = tf.raw_ops.SparseSegmentMean(data=value, indices=tf.reshape(leaves, [-1]), segment_ids=example)
    return tf.ensure_shape(means, [None, outputs])
