"""Decision trees as arrays, and their evaluation with plain TensorFlow operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_LEVELS = 8
"""How many levels are descended at a time, before the examples that are in a leaf are left alone."""


class Trees(NamedTuple):
    """The nodes of all trees of a forest, numbered through; as arrays, or as the variables that hold them.

    The two children of a node have consecutive numbers. A leaf is its own left child, and its threshold is
    infinity: an example that is in a leaf stays there.

    Fields:
        roots: int32 `[trees]`, the root of each tree.
        right: int32 `[nodes]`, the right child; the left one is the node before it.
        feature: int32 `[nodes]`, which feature a node looks at, in a table of all features twice (see
            `mean_outputs`).
        threshold: float32 `[nodes]`; examples whose feature is at most this go left.
        value: float64 `[nodes, outputs]`, the outputs for the examples that end here.
        importance: float64 `[features]`, how much each feature has done for the fit; the sum is one.
    """

    roots: Any
    right: Any
    feature: Any
    threshold: Any
    value: Any
    importance: Any

    @classmethod
    def leaf(cls, value: Sequence[float]) -> Trees:
        """Return one tree that gives every example the same outputs."""
        zero = np.zeros(1, np.int32)
        infinity = np.full(1, np.inf, np.float32)
        return cls(zero, zero + 1, zero, infinity, np.array([value], np.float64), np.zeros(0))

    @classmethod
    def of(cls, fitted: Any, values: Sequence[np.ndarray]) -> Trees:
        """Take over scikit-learn's trees.

        Args:
            fitted: the forest.
            values: for each tree float64 `[its nodes, outputs]`.
        """
        trees = [
            _renumbered(each.tree_, value) for each, value in zip(fitted.estimators_, values, strict=True)
        ]
        counts = [len(tree.right) for tree in trees]
        roots = np.cumsum([0, *counts[:-1]]).astype(np.int32)
        return cls(
            roots=roots,
            right=np.concatenate([tree.right for tree in trees]) + np.repeat(roots, counts),
            feature=np.concatenate([tree.feature for tree in trees]),
            threshold=np.concatenate([tree.threshold for tree in trees]),
            value=np.concatenate([tree.value for tree in trees]),
            importance=np.asarray(fitted.feature_importances_, np.float64),
        )


class _Tree(NamedTuple):
    """One tree, with the fields of `Trees`."""

    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    value: np.ndarray


def _renumbered(tree: Any, value: np.ndarray) -> _Tree:
    """Return a `sklearn.tree` tree with the children of a node next to each other."""
    inner = np.flatnonzero(tree.children_left >= 0)
    number = np.zeros(tree.node_count, np.int32)
    number[tree.children_left[inner]] = 1 + 2 * np.arange(len(inner))
    number[tree.children_right[inner]] = 2 + 2 * np.arange(len(inner))
    right = np.arange(tree.node_count, dtype=np.int32) + 1
    right[number[inner]] = number[tree.children_right[inner]]
    feature = np.zeros(tree.node_count, np.int32)
    second = 1 - tree.missing_go_to_left[inner].astype(np.int32)
    feature[number[inner]] = tree.feature[inner] + second * tree.n_features
    threshold = np.full(tree.node_count, np.inf, np.float32)
    threshold[number[inner]] = _rounded_down(tree.threshold[inner])
    ordered = np.empty(value.shape, np.float64)
    ordered[number] = value
    return _Tree(right, feature, threshold, ordered)


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
        values: the features, float32 `[batch, features]`; NaN where one is missing.
        outputs: how many outputs the forest has.
    """
    roots = trees.roots.read_value()
    batch, count = tf.shape(values)[0], tf.shape(roots)[0]
    # Tree by tree, because the nodes of one tree stay in the processor's cache.
    leaves = _leaves(trees, values, tf.repeat(roots, batch), batch)
    by_example = tf.reshape(tf.transpose(tf.reshape(leaves, tf.stack([count, batch]))), [-1])
    # The mean over the trees, without an array of every tree's outputs for every example.
    means = tf.raw_ops.SparseSegmentMean(
        data=trees.value.read_value(), indices=by_example, segment_ids=tf.repeat(tf.range(batch), count)
    )
    return tf.ensure_shape(means, [None, outputs])


def _leaves(trees: Trees, values: tf.Tensor, start: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    """Return the leaf of each example in each tree, from the roots `start`, int32 `[trees * batch]`."""
    right, feature, threshold = (each.read_value() for each in (trees.right, trees.feature, trees.threshold))
    # Missing values go left in the first copy of the features, right in the second: NaN is at most nothing.
    leftmost = tf.where(tf.math.is_nan(values), tf.constant(-np.inf, tf.float32), values)
    table = tf.concat([leftmost, values], axis=1)
    width = tf.shape(table)[1]
    table = tf.reshape(table, [-1])

    def descend(nodes: tf.Tensor, moving: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        here = tf.gather(nodes, moving)
        row = moving % batch * width
        for _ in range(_LEVELS):
            seen = tf.gather(table, row + tf.gather(feature, here))
            # Not by the contrary, `seen > threshold`, which would send missing values left.
            goes_left = seen <= tf.gather(threshold, here)
            here = tf.gather(right, here) - tf.cast(goes_left, tf.int32)
        nodes = tf.tensor_scatter_nd_update(nodes, tf.expand_dims(moving, 1), here)
        return nodes, tf.boolean_mask(moving, tf.not_equal(tf.gather(right, here) - 1, here))

    leaves, _ = tf.while_loop(
        lambda _, moving: tf.size(moving) > 0,
        descend,
        (start, tf.range(tf.size(start))),
        shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None])),
    )
    return leaves
