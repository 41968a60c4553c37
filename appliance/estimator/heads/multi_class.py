"""The head for three or more classes, of which each example has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.export import PredictOutput
from appliance.estimator.heads import metrics as graph_metrics
from appliance.estimator.heads.base import Examples, SingleHead
from appliance.estimator.heads.checks import (
    check_label_range,
    check_labels,
    check_logits,
    check_vocabulary,
)
from appliance.estimator.heads.classes import (
    checked_class_weights,
    class_predictions,
    classification_output,
    vocabulary_ids,
    wanted_keys,
)

_KEYS = ("logits", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes")


class MultiClassHead(SingleHead):
    """A head for three or more exclusive classes: softmax cross entropy of `[D0, ..., DN, n_classes]` logits.

    Labels are integers in [0, n_classes), or strings of the vocabulary, of shape `[D0, ..., DN]` or `[D0,
    ..., DN, 1]`.

    Args:
        n_classes: more than two; for two, use `BinaryClassHead`.
        weight_column, label_vocabulary, loss_reduction, loss_fn, name, class_weight: as for
            `BinaryClassHead`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.MultiClassHead`.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
        class_weight: Mapping[Any, float] | None = None,
    ) -> None:
        if n_classes is None or n_classes <= 2:
            raise ValueError(f"n_classes must be > 2: {n_classes}. For two classes use BinaryClassHead.")
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._n_classes = n_classes
        self._vocabulary = check_vocabulary(label_vocabulary, n_classes)
        self._class_weights = checked_class_weights(class_weight, n_classes, self._vocabulary)

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self._n_classes

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        labels = check_labels(labels, logits, 1)
        if self._vocabulary is not None:
            labels = vocabulary_ids(labels, self._vocabulary)
        elif not labels.dtype.is_integer:
            raise ValueError(
                f"Labels dtype should be integer. Instead got {labels.dtype.name}. Return class ids in [0, "
                f"{self._n_classes}), or give a label_vocabulary for string labels."
            )
        return check_label_range(labels, self._n_classes)

    def _class_weights_of(self, labels: tf.Tensor) -> tf.Tensor | None:
        return None if self._class_weights is None else tf.gather(self._class_weights, labels)

    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.squeeze(labels, axis=-1), logits=logits
        )
        return tf.expand_dims(losses, axis=-1)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """See `Head`.

        Returns:
            `logits` and `probabilities` float32 `[..., n_classes]`, `class_ids` int64 `[..., 1]`, `classes`
            bytes `[..., 1]`, `all_class_ids` int32 and `all_classes` bytes `[batch, n_classes]`.
        """
        keys = wanted_keys(keys, _KEYS)
        logits = check_logits(logits, self._n_classes)
        with tf.name_scope("predictions"):
            predictions = {"logits": logits}
            if "probabilities" in keys:
                predictions["probabilities"] = tf.nn.softmax(logits, name="probabilities")
            predictions.update(class_predictions(logits, keys, self._n_classes, self._vocabulary))
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

    def _graph_metrics(
        self, examples: Examples, logits: tf.Tensor, predictions: Mapping[Any, tf.Tensor]
    ) -> dict[str, graph_metrics.Pair]:
        accuracy = graph_metrics.accuracy(examples.labels, predictions["class_ids"], examples.weights)
        return {"accuracy": accuracy}

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """See `Head`. Keys: accuracy, average_loss; regularization_loss when there are such losses."""
        keras = tf.keras.metrics
        metrics: dict[str, Any] = {
            "average_loss": keras.Mean(name="average_loss"),
            "accuracy": keras.Accuracy(name="accuracy"),
        }
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
        class_ids = self.predictions(logits, ["class_ids"])["class_ids"]
        eval_metrics[self._key("average_loss")].update_state(losses, sample_weight=weights)
        eval_metrics[self._key("accuracy")].update_state(labels, class_ids, sample_weight=weights)
        if regularization_losses is not None:
            total = tf.add_n(list(regularization_losses))
            eval_metrics[self._key("regularization_loss")].update_state(total)
        return eval_metrics
