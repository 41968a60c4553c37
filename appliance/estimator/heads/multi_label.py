"""The head for classes of which an example may have any number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.export import PredictOutput
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
    all_classes,
    at_threshold,
    classification_output,
    vocabulary_ids,
    wanted_keys,
)

_KEYS = ("logits", "probabilities", "classes")


class MultiLabelHead(SingleHead):
    """A head for classes that do not exclude one another: sigmoid cross entropy, averaged over the classes.

    Logits are `[D0, ..., DN, n_classes]`. Labels are a tensor of that shape with a 1 for each class that the
    example has and 0 elsewhere, or a SparseTensor `[D0, ..., DN, ?]` of class ids in [0, n_classes), or of
    strings of the vocabulary.

    Args:
        n_classes: more than one.
        weight_column, thresholds, loss_reduction, name: as for `BinaryClassHead`.
        label_vocabulary: the names of the classes, for labels that are strings.
        loss_fn: from `labels` (0 or 1, of the logits' shape) and `logits` (and `features`) to the losses,
            `[D0, ..., DN, 1]`.
        classes_for_class_based_metrics: class ids, or names of the vocabulary, for which the mean probability
            and the areas under the curves are reported one by one.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.MultiLabelHead`.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        classes_for_class_based_metrics: Sequence[int | str] | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None or n_classes < 2:
            raise ValueError(
                f"n_classes must be > 1 for multi-label classification. Given: {n_classes}. For one class "
                "use BinaryClassHead."
            )
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._n_classes = n_classes
        self._thresholds = check_thresholds(thresholds)
        self._vocabulary = check_vocabulary(label_vocabulary, n_classes)
        self._own_metrics = tuple(self._class_id(which) for which in classes_for_class_based_metrics or ())

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self._n_classes

    def _class_id(self, which: int | str) -> int:
        argument = "classes_for_class_based_metrics"
        if isinstance(which, str):
            if self._vocabulary is None:
                raise ValueError(
                    f"label_vocabulary must be provided when {argument} are strings. Given: {which!r}."
                )
            if which not in self._vocabulary:
                raise ValueError(
                    f"{argument} names {which!r}, which is not in the label_vocabulary: "
                    f"{list(self._vocabulary)}."
                )
            return self._vocabulary.index(which)
        if not 0 <= which < self._n_classes:
            raise ValueError(f"All {argument} must be in range [0, {self._n_classes - 1}]. Given: {which}.")
        return which

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        if isinstance(labels, tf.SparseTensor):
            labels = self._indicator(labels)
        elif labels is not None and not isinstance(labels, Mapping):
            labels = tf.convert_to_tensor(labels)
            if labels.dtype == tf.string:
                raise ValueError(
                    "String labels must be a SparseTensor of the names of each example's classes; got a "
                    "Tensor. Use tf.sparse.from_dense in the input_fn, or give 0 or 1 for each class."
                )
        labels = check_labels(labels, logits, self._n_classes)
        return check_label_range(
            labels,
            2,
            "labels must be an integer indicator Tensor, 0 or 1 a class: ",
            "To list the classes of an example, return a SparseTensor of their ids.",
        )

    def _indicator(self, labels: tf.SparseTensor) -> tf.Tensor:
        """Return 1 for each class that is listed, 0 elsewhere; int64."""
        ids = labels.values
        if labels.dtype == tf.string:
            if self._vocabulary is None:
                raise ValueError(
                    "Labels are strings, but the head has no label_vocabulary. Give it the names of the "
                    f"{self._n_classes} classes, or return class ids."
                )
            ids = vocabulary_ids(ids, self._vocabulary)
        elif not labels.dtype.is_integer:
            raise ValueError(
                f"Labels dtype should be integer. Instead got {labels.dtype.name}. Return class ids in [0, "
                f"{self._n_classes}), or a dense tensor with 0 or 1 for each class."
            )
        ids = check_label_range(ids, self._n_classes, "labels must be an integer SparseTensor: ")
        listed = tf.SparseTensor(labels.indices, ids, labels.dense_shape)
        return tf.cast(tf.sparse.to_indicator(listed, self._n_classes), tf.int64)

    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=logits)
        return tf.reduce_mean(losses, axis=-1, keepdims=True)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """See `Head`.

        Returns:
            `logits` and `probabilities` float32 `[..., n_classes]`, `classes`, the names of all classes,
            bytes `[batch, n_classes]`.
        """
        keys = wanted_keys(keys, _KEYS)
        logits = check_logits(logits, self._n_classes)
        with tf.name_scope("predictions"):
            predictions = {"logits": logits}
            if "probabilities" in keys:
                predictions["probabilities"] = tf.sigmoid(logits, name="probabilities")
            if "classes" in keys:
                predictions["classes"] = all_classes(logits, self._n_classes, self._vocabulary)
        return {key: predictions[key] for key in keys}

    def _export_outputs(self, predictions: Mapping[Any, tf.Tensor]) -> dict[str, Any]:
        classification = classification_output(
            predictions["probabilities"], self._n_classes, self._vocabulary
        )
        return {
            "serving_default": classification,
            "classification": classification,
            "predict": PredictOutput(dict(predictions)),
        }

    def _of_class(self, key: str, class_id: int) -> str:
        return f"{key}/{self._vocabulary[class_id] if self._vocabulary else f'class{class_id}'}"

    def _graph_metrics(
        self, examples: Examples, logits: tf.Tensor, predictions: Mapping[Any, tf.Tensor]
    ) -> dict[str, graph_metrics.Pair]:
        labels, _, weights = examples
        probabilities = predictions["probabilities"]
        auc, auc_precision_recall = graph_metrics.areas_under_curves(labels, probabilities, weights)
        pairs = {"auc": auc, "auc_precision_recall": auc_precision_recall}
        for threshold in self._thresholds:
            above = probabilities > threshold
            precision, recall = graph_metrics.precision_and_recall(labels, above, weights, "at_threshold")
            pairs[at_threshold("accuracy", threshold)] = graph_metrics.accuracy(labels, above, weights)
            pairs[at_threshold("precision", threshold)] = precision
            pairs[at_threshold("recall", threshold)] = recall
        for class_id in self._own_metrics:
            of_class = slice(class_id, class_id + 1)
            own, own_labels = probabilities[..., of_class], labels[..., of_class]
            auc, auc_precision_recall = graph_metrics.areas_under_curves(own_labels, own, weights)
            mean = graph_metrics.mean(own, weights, "probability_mean")
            pairs[self._of_class("probability_mean", class_id)] = mean
            pairs[self._of_class("auc", class_id)] = auc
            pairs[self._of_class("auc_precision_recall", class_id)] = auc_precision_recall
        return pairs

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """See `Head`. Keys: auc, auc_precision_recall, average_loss; three more for each threshold and for
        each of `classes_for_class_based_metrics`; regularization_loss when there are such losses.
        """
        keras = tf.keras.metrics
        metrics: dict[str, Any] = {
            "average_loss": keras.Mean(name="average_loss"),
            "auc": keras.AUC(name="auc"),
            "auc_precision_recall": keras.AUC(curve="PR", name="auc_precision_recall"),
        }
        for threshold in self._thresholds:
            metrics[at_threshold("accuracy", threshold)] = keras.BinaryAccuracy(threshold=threshold)
            metrics[at_threshold("precision", threshold)] = keras.Precision(thresholds=threshold)
            metrics[at_threshold("recall", threshold)] = keras.Recall(thresholds=threshold)
        for class_id in self._own_metrics:
            metrics[self._of_class("probability_mean", class_id)] = keras.Mean()
            metrics[self._of_class("auc", class_id)] = keras.AUC()
            metrics[self._of_class("auc_precision_recall", class_id)] = keras.AUC(curve="PR")
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
        logits = check_logits(logits, self._n_classes)
        labels, losses, weights = self._examples(labels, logits, features)
        probabilities = self.predictions(logits, ["probabilities"])["probabilities"]
        eval_metrics[self._key("average_loss")].update_state(losses, sample_weight=weights)
        pairs = ["auc", "auc_precision_recall"]
        pairs += [
            at_threshold(key, threshold)
            for threshold in self._thresholds
            for key in ("accuracy", "precision", "recall")
        ]
        for key in pairs:
            eval_metrics[self._key(key)].update_state(labels, probabilities, sample_weight=weights)
        for class_id in self._own_metrics:
            of_class = slice(class_id, class_id + 1)
            own, own_labels = probabilities[..., of_class], labels[..., of_class]
            mean = eval_metrics[self._key(self._of_class("probability_mean", class_id))]
            mean.update_state(own, sample_weight=weights)
            for key in ("auc", "auc_precision_recall"):
                metric = eval_metrics[self._key(self._of_class(key, class_id))]
                metric.update_state(own_labels, own, sample_weight=weights)
        if regularization_losses is not None:
            total = tf.add_n(list(regularization_losses))
            eval_metrics[self._key("regularization_loss")].update_state(total)
        return eval_metrics
