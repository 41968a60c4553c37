"""The head for real values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.export import PredictOutput, RegressionOutput
from appliance.estimator.heads import metrics as graph_metrics
from appliance.estimator.heads.base import Examples, SingleHead
from appliance.estimator.heads.checks import check_labels, check_logits
from appliance.estimator.heads.classes import wanted_keys


class RegressionHead(SingleHead):
    """A head for real values: squared error of `[D0, ..., DN, label_dimension]` logits.

    Labels are numbers of the logits' shape; with `label_dimension=1` also `[D0, ..., DN]`. Weights may be one
    for each example or one for each value.

    Args:
        label_dimension: how many values an example has.
        weight_column, loss_reduction, name: as for `BinaryClassHead`; the mean is over examples and values.
        loss_fn: from `labels` and `logits` (and `features`) to the losses, of the logits' shape.
        inverse_link_fn: from logits to predictions; identity when None.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.RegressionHead`.
    """

    _weights_per_logit = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        inverse_link_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        if label_dimension < 1:
            raise ValueError(f"Invalid label_dimension {label_dimension}: it must be at least 1.")
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._logits_dimension = self._loss_dimension = label_dimension
        self._inverse_link_fn = inverse_link_fn

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self._logits_dimension

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        labels = check_labels(labels, logits, self._logits_dimension)
        if not (labels.dtype.is_floating or labels.dtype.is_integer):
            raise ValueError(
                f"Labels of a regression must be numbers; got {labels.dtype.name}. Convert them in the "
                "input_fn."
            )
        return tf.cast(labels, tf.float32)

    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.math.squared_difference(logits, labels)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """See `Head`.

        Returns:
            `predictions` float32 `[..., label_dimension]`; with an inverse link also `logits`.
        """
        logits = check_logits(logits, self._logits_dimension)
        with tf.name_scope("predictions"):
            predictions = {"predictions": logits}
            if self._inverse_link_fn is not None:
                predictions = {"predictions": self._inverse_link_fn(logits), "logits": logits}
        return {key: predictions[key] for key in wanted_keys(keys, tuple(predictions))}

    def _export_outputs(self, predictions: Mapping[Any, tf.Tensor]) -> dict[str, Any]:
        regression = RegressionOutput(value=predictions["predictions"])
        return {
            "serving_default": regression,
            "regression": regression,
            "predict": PredictOutput(dict(predictions)),
        }

    def _graph_metrics(
        self, examples: Examples, logits: tf.Tensor, predictions: Mapping[Any, tf.Tensor]
    ) -> dict[str, graph_metrics.Pair]:
        return {
            "prediction/mean": graph_metrics.mean(
                predictions["predictions"], examples.weights, "prediction_mean"
            ),
            "label/mean": graph_metrics.mean(examples.labels, examples.weights, "label_mean"),
        }

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """See `Head`. Keys: average_loss, label/mean, prediction/mean (and regularization_loss)."""
        keys = ["average_loss", "prediction/mean", "label/mean"]
        if regularization_losses is not None:
            keys.append("regularization_loss")
        return {self._key(key): tf.keras.metrics.Mean(name=key.replace("/", "_")) for key in keys}

    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """See `Head`."""
        logits = check_logits(logits, self._logits_dimension)
        labels, losses, weights = self._examples(labels, logits, features)
        predicted = self.predictions(logits)["predictions"]
        if weights is not None:
            weights = tf.broadcast_to(weights, tf.shape(logits))
        values = {"average_loss": losses, "prediction/mean": predicted, "label/mean": labels}
        for key, value in values.items():
            eval_metrics[self._key(key)].update_state(value, sample_weight=weights)
        if regularization_losses is not None:
            total = tf.add_n(list(regularization_losses))
            eval_metrics[self._key("regularization_loss")].update_state(total)
        return eval_metrics
