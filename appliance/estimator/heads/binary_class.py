"""The head for two classes and one logit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.export import PredictOutput, RegressionOutput
from appliance.estimator.heads import metrics as graph_metrics
from appliance.estimator.heads.base import Examples, SingleHead
from appliance.estimator.heads.checks import (
    check_label_range,
    check_labels,
    check_logits,
    check_thresholds,
    check_vocabulary,
)
from appliance.estimator.heads.classes import (
    at_threshold,
    checked_class_weights,
    class_predictions,
    classification_output,
    vocabulary_ids,
    wanted_keys,
)

_KEYS = ("logits", "logistic", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes")


class BinaryClassHead(SingleHead):
    """A head for two classes: sigmoid cross entropy of one logit, `[D0, ..., DN, 1]`.

    Labels are numbers in [0, 1], soft ones included, or strings of the vocabulary; their shape is that of the
    logits, with or without the last dimension.

    Args:
        weight_column: a feature's name, or a numeric column, with the weight of each example.
        thresholds: in (0, 1); for each, accuracy, precision and recall are reported with the class decided
            there.
        label_vocabulary: the two labels, when they are strings.
        loss_reduction: `sum_over_batch_size` (the mean over the batch) or `sum`.
        loss_fn: from `labels` and `logits` (and `features`) to the losses, `[D0, ..., DN, 1]`.
        name: goes behind every metric key and summary tag.
        class_weight: label to the weight of its examples in the training loss (1 for labels left out); losses
            and metrics of an evaluation are without it. None: all weigh the same.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.BinaryClassHead`.
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
        class_weight: Mapping[Any, float] | None = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._thresholds = check_thresholds(thresholds)
        self._vocabulary = check_vocabulary(label_vocabulary, 2)
        self._class_weights = checked_class_weights(class_weight, 2, self._vocabulary)

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return 1

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        labels = check_labels(labels, logits, 1)
        if self._vocabulary is not None:
            labels = vocabulary_ids(labels, self._vocabulary)
        elif labels.dtype == tf.string:
            raise ValueError(
                "Labels are strings, but the head has no label_vocabulary. Give it the two labels, or "
                "return numbers in [0, 1]."
            )
        return check_label_range(tf.cast(labels, tf.float32), 2)

    def _class_weights_of(self, labels: tf.Tensor) -> tf.Tensor | None:
        if self._class_weights is None:
            return None
        zero, one = self._class_weights
        return zero + (one - zero) * labels  # Between the two for a label between them.

    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """See `Head`.

        Returns:
            `logits` and `logistic` float32 `[..., 1]`, `probabilities` float32 `[..., 2]`, `class_ids` int64
            `[..., 1]`, `classes` bytes `[..., 1]`, `all_class_ids` int32 and `all_classes` bytes `[batch,
            2]`.
        """
        keys = wanted_keys(keys, _KEYS)
        logits = check_logits(logits, 1)
        with tf.name_scope("predictions"):
            two_logits = tf.concat([tf.zeros_like(logits), logits], axis=-1, name="two_class_logits")
            predictions = {"logits": logits}
            if "logistic" in keys:
                predictions["logistic"] = tf.sigmoid(logits, name="logistic")
            if "probabilities" in keys:
                predictions["probabilities"] = tf.nn.softmax(two_logits, name="probabilities")
            predictions.update(class_predictions(two_logits, keys, 2, self._vocabulary))
        return {key: predictions[key] for key in keys}

    def _export_outputs(self, predictions: Mapping[Any, tf.Tensor]) -> dict[str, Any]:
        classification = classification_output(predictions["probabilities"], 2, self._vocabulary)
        return {
            "serving_default": classification,
            "classification": classification,
            "regression": RegressionOutput(value=predictions["logistic"]),
            "predict": PredictOutput(dict(predictions)),
        }

    def _graph_metrics(
        self, examples: Examples, logits: tf.Tensor, predictions: Mapping[Any, tf.Tensor]
    ) -> dict[str, graph_metrics.Pair]:
        labels, _, weights = examples
        logistic, class_ids = predictions["logistic"], predictions["class_ids"]
        label_mean = graph_metrics.Mean(labels, weights, "label_mean")
        precision, recall = graph_metrics.precision_and_recall(labels, class_ids > 0, weights, "default")
        auc, auc_precision_recall = graph_metrics.areas_under_curves(labels, logistic, weights)
        pairs = {
            "accuracy": graph_metrics.accuracy(labels, class_ids, weights),
            "precision": precision,
            "recall": recall,
            "prediction/mean": graph_metrics.mean(logistic, weights, "prediction_mean"),
            "label/mean": label_mean.pair,
            "accuracy_baseline": graph_metrics.accuracy_baseline(label_mean),
            "auc": auc,
            "auc_precision_recall": auc_precision_recall,
        }
        for threshold in self._thresholds:
            above = logistic > threshold
            with tf.name_scope("threshold"):
                precision, recall = graph_metrics.precision_and_recall(labels, above, weights, "at")
                pairs[at_threshold("accuracy", threshold)] = graph_metrics.accuracy(labels, above, weights)
            pairs[at_threshold("precision", threshold)] = precision
            pairs[at_threshold("recall", threshold)] = recall
        return pairs

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """See `Head`. Keys: accuracy, accuracy_baseline, auc, auc_precision_recall, average_loss, label/mean,
        precision, prediction/mean, recall; three more for each threshold; regularization_loss when there are
        such losses.
        """
        keras = tf.keras.metrics
        metrics: dict[str, Any] = {
            "average_loss": keras.Mean(name="average_loss"),
            "accuracy": keras.Accuracy(name="accuracy"),
            "precision": keras.Precision(name="precision"),
            "recall": keras.Recall(name="recall"),
            "prediction/mean": keras.Mean(name="prediction_mean"),
            "label/mean": keras.Mean(name="label_mean"),
            "accuracy_baseline": _accuracy_baseline(),
            "auc": keras.AUC(name="auc"),
            "auc_precision_recall": keras.AUC(curve="PR", name="auc_precision_recall"),
        }
        for threshold in self._thresholds:
            metrics[at_threshold("accuracy", threshold)] = keras.BinaryAccuracy(threshold=threshold)
            metrics[at_threshold("precision", threshold)] = keras.Precision(thresholds=threshold)
            metrics[at_threshold("recall", threshold)] = keras.Recall(thresholds=threshold)
        if regularization_losses is not None:
            metrics["regularization_loss"] = keras.Mean(name="regularization_loss")
        return {self._key(key): metric for key, metric in metrics.items()}

    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """See `Head`."""
        logits = check_logits(logits, 1)
        labels, losses, weights = self._examples(labels, logits, features)
        predictions = self.predictions(logits, ["logistic", "class_ids"])
        logistic, class_ids = predictions["logistic"], tf.cast(predictions["class_ids"], tf.float32)
        means = {"average_loss": losses, "prediction/mean": logistic, "label/mean": labels}
        for key, values in {**means, "accuracy_baseline": labels}.items():
            eval_metrics[self._key(key)].update_state(values, sample_weight=weights)
        for key in ("accuracy", "precision", "recall"):
            eval_metrics[self._key(key)].update_state(labels, class_ids, sample_weight=weights)
            for threshold in self._thresholds:
                metric = eval_metrics[self._key(at_threshold(key, threshold))]
                metric.update_state(labels, logistic, sample_weight=weights)
        for key in ("auc", "auc_precision_recall"):
            eval_metrics[self._key(key)].update_state(labels, logistic, sample_weight=weights)
        if regularization_losses is not None:
            total = tf.add_n(list(regularization_losses))
            eval_metrics[self._key("regularization_loss")].update_state(total)
        return eval_metrics


def _accuracy_baseline() -> Any:
    """Return a Keras metric of the accuracy of always predicting the more frequent class."""

    class AccuracyBaseline(tf.keras.metrics.Mean):  # type: ignore[misc]
        """max(mean of the labels, 1 - mean of the labels)."""

        def result(self) -> Any:
            """Return the baseline so far, a scalar."""
            label_mean = super().result()
            return tf.maximum(label_mean, 1.0 - label_mean)

    return AccuracyBaseline(name="accuracy_baseline")
