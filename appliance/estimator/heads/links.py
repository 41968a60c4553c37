"""Regression heads with an inverse link: logistic and Poisson regression.

References:
    McCullagh and Nelder, Generalized Linear Models, 2nd edition, 1989.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from appliance.estimator.heads.checks import check_label_range, checked
from appliance.estimator.heads.regression import RegressionHead


class LogisticRegressionHead(RegressionHead):
    """A head for one value in [0, 1]: sigmoid cross entropy of `[D0, ..., DN, 1]` logits.

    Unlike `BinaryClassHead` it predicts the value (`predictions`, the sigmoid of `logits`) and no class, and
    reports the metrics of a regression.

    Args:
        weight_column, loss_reduction, name: as for `RegressionHead`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.LogisticRegressionHead`.
    """

    def __init__(
        self,
        weight_column: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ) -> None:
        super().__init__(
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            inverse_link_fn=tf.sigmoid,
            name=name,
        )

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        labels = super()._processed_labels(logits, labels)
        return check_label_range(
            labels, 2, "Labels must be in range [0, 1]: ", "Let the input_fn return probabilities."
        )

    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)


class PoissonRegressionHead(RegressionHead):
    """A head for counts: Poisson log-likelihood of `[D0, ..., DN, label_dimension]` logits, the logarithms of
    the predicted rates.

    Args:
        label_dimension, weight_column, loss_reduction, name: as for `RegressionHead`.
        compute_full_loss: whether the loss includes the logarithm of the labels' factorial (in Stirling's
            approximation), which does not depend on the model.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.PoissonRegressionHead`, `tf.nn.log_poisson_loss`.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            inverse_link_fn=tf.exp,
            name=name,
        )
        self._compute_full_loss = compute_full_loss

    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        labels = super()._processed_labels(logits, labels)
        message = "Labels of a Poisson regression are counts and must be >= 0. Given: "
        return checked(labels, tf.reduce_all(labels >= 0.0), message, labels)

    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_poisson_loss(labels, logits, compute_full_loss=self._compute_full_loss)
