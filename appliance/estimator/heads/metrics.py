"""Streaming metrics as graph operations: each is a (value, update) pair over variables that every session
starts afresh.

The definitions are those of Keras' metrics; the accumulators are float64, so that a long evaluation loses
nothing. The two areas share one histogram, so that an evaluation step sorts the predictions into thresholds
once.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Pair = tuple[tf.Tensor, Any]
AUC_THRESHOLDS = 200


def _accumulator(name: str, shape: tuple[int, ...] = ()) -> Any:
    keys = tf.compat.v1.GraphKeys
    return tf.compat.v1.Variable(
        lambda: tf.zeros(shape, tf.float64),
        trainable=False,
        collections=[keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES],
        use_resource=True,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def _broadcast(weights: tf.Tensor | None, values: tf.Tensor) -> tf.Tensor:
    ones = tf.ones_like(values, tf.float64)
    return ones if weights is None else ones * tf.cast(weights, tf.float64)


def _ratio(numerator: tf.Tensor, denominator: tf.Tensor, name: str = "value") -> tf.Tensor:
    return tf.cast(tf.math.divide_no_nan(numerator, denominator), tf.float32, name=name)


class Mean:
    """A weighted mean that is still to be read: `pair` is the metric; `total` and `count` are the sums.

    Args:
        values: any number type, `[D0, ..., DN]`.
        weights: broadcastable to `values`; None for 1.
        name: of the operations.
    """

    def __init__(self, values: tf.Tensor, weights: tf.Tensor | None, name: str) -> None:
        with tf.name_scope(name):
            self.total, self.count = _accumulator("total"), _accumulator("count")
            broadcast = _broadcast(weights, values)
            update_total = self.total.assign_add(
                tf.reduce_sum(tf.cast(values, tf.float64) * broadcast), read_value=False
            )
            # Where the shape is known the count needs no values, and would grow once more as the data ends.
            with tf.control_dependencies([values]):
                update_count = self.count.assign_add(tf.reduce_sum(broadcast), read_value=False)
            self.update = tf.group(update_total, update_count)
            self.pair: Pair = (_ratio(self.total.read_value(), self.count.read_value()), self.update)


def mean(values: tf.Tensor, weights: tf.Tensor | None, name: str) -> Pair:
    """Return the weighted mean of `values`."""
    return Mean(values, weights, name).pair


def accuracy(
    labels: tf.Tensor, predicted: tf.Tensor, weights: tf.Tensor | None, name: str = "accuracy"
) -> Pair:
    """Return the weighted share of examples with `labels == predicted`."""
    return mean(tf.cast(tf.equal(labels, tf.cast(predicted, labels.dtype)), tf.float32), weights, name)


def accuracy_baseline(label_mean: Mean) -> Pair:
    """Return the accuracy of always predicting the more frequent class."""
    total, count = label_mean.total.read_value(), label_mean.count.read_value()
    return _ratio(tf.maximum(total, count - total), count, "accuracy_baseline"), label_mean.update


def precision_and_recall(
    labels: tf.Tensor, predicted: tf.Tensor, weights: tf.Tensor | None, name: str
) -> tuple[Pair, Pair]:
    """Return precision and recall; a label other than 0 counts as positive.

    Args:
        labels: numbers `[D0, ..., DN, 1]`.
        predicted: bool, of the same shape.
        weights: of the same shape, or None.
        name: of the operations.
    """
    with tf.name_scope(name):
        positive = tf.not_equal(labels, tf.zeros([], labels.dtype))
        broadcast = _broadcast(weights, labels)

        def count(which: tf.Tensor, variable: str) -> tuple[tf.Tensor, Any]:
            sums = _accumulator(variable)
            update = sums.assign_add(
                tf.reduce_sum(tf.where(which, broadcast, tf.zeros_like(broadcast))), read_value=False
            )
            return sums.read_value(), update

        hits, update_hits = count(positive & predicted, "true_positives")
        false_alarms, update_false_alarms = count(~positive & predicted, "false_positives")
        misses, update_misses = count(positive & ~predicted, "false_negatives")
        return (
            (_ratio(hits, hits + false_alarms, "precision"), tf.group(update_hits, update_false_alarms)),
            (_ratio(hits, hits + misses, "recall"), tf.group(update_hits, update_misses)),
        )


def areas_under_curves(
    labels: tf.Tensor, probabilities: tf.Tensor, weights: tf.Tensor | None
) -> tuple[Pair, Pair]:
    """Return the areas under the ROC curve and under the precision-recall curve, at 200 evenly spaced
    thresholds.

    Args:
        labels: numbers in [0, 1], `[D0, ..., DN, 1]`; any other than 0 counts as positive, soft labels too.
        probabilities: float in [0, 1], of the same shape.
        weights: broadcastable, or None.

    References:
        Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves, ICML 2006, for the
        interpolation between points of the precision-recall curve. Source: `tf.keras.metrics.AUC`.
    """
    with tf.name_scope("auc"):
        positives = _accumulator("positives", (AUC_THRESHOLDS,))
        negatives = _accumulator("negatives", (AUC_THRESHOLDS,))
        flat_labels = tf.cast(tf.not_equal(tf.reshape(labels, [-1]), 0), tf.float64)
        flat_weights = tf.reshape(_broadcast(weights, labels), [-1])
        scaled = tf.reshape(probabilities, [-1]) * (AUC_THRESHOLDS - 1)
        bucket = tf.maximum(tf.cast(tf.math.ceil(scaled), tf.int32) - 1, 0)

        def add(variable: Any, amounts: tf.Tensor) -> Any:
            return variable.assign_add(
                tf.math.unsorted_segment_sum(amounts, bucket, AUC_THRESHOLDS), read_value=False
            )

        update = tf.group(
            add(positives, flat_labels * flat_weights), add(negatives, (1.0 - flat_labels) * flat_weights)
        )
        hits = tf.cumsum(positives.read_value(), reverse=True)
        false_alarms = tf.cumsum(negatives.read_value(), reverse=True)
        roc = tf.cast(_roc_area(hits, false_alarms), tf.float32, name="roc")
        pr = tf.cast(_precision_recall_area(hits, false_alarms), tf.float32, name="precision_recall")
        return (roc, update), (pr, update)


def _roc_area(hits: tf.Tensor, false_alarms: tf.Tensor) -> tf.Tensor:
    # Every example is above the lowest threshold, so the first entries are the numbers of positives and
    # negatives.
    hit_rate = tf.math.divide_no_nan(hits, hits[0])
    false_alarm_rate = tf.math.divide_no_nan(false_alarms, false_alarms[0])
    width = false_alarm_rate[:-1] - false_alarm_rate[1:]
    return tf.reduce_sum(width * (hit_rate[:-1] + hit_rate[1:]) / 2.0)


def _precision_recall_area(hits: tf.Tensor, false_alarms: tf.Tensor) -> tf.Tensor:
    claims = hits + false_alarms
    gained = hits[:-1] - hits[1:]
    slope = tf.math.divide_no_nan(gained, claims[:-1] - claims[1:])
    intercept = hits[1:] - slope * claims[1:]
    both = tf.logical_and(claims[:-1] > 0, claims[1:] > 0)
    growth = tf.where(both, tf.math.divide_no_nan(claims[:-1], claims[1:]), tf.ones_like(gained))
    steps = slope * (gained + intercept * tf.math.log(growth))
    return tf.reduce_sum(tf.math.divide_no_nan(steps, hits[0]))
