"""A head for each step of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.heads.base import Head
from appliance.estimator.heads.multi_head import MultiHead
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys


class SequentialHead(Head):
    """Applies a head to every step of sequences: losses and metrics leave out the steps that fill up.

    Logits are `[batch, steps, logits_dimension]`; labels `[batch, steps]`, `[batch, steps, n]`, or a
    SparseTensor of them. The mask, bool `[batch, steps]`, is among the features and joins the predictions.

    Args:
        head: any head but a `MultiHead`.
        mask_key: the feature with the mask.
        feature_keys: the features that the head reads, such as its weight column; `[batch, steps]` too.

    Raises:
        ValueError: the head is a `MultiHead`.

    Source: tf.estimator's `SequentialHeadWrapper`.
    """

    def __init__(self, head: Head, mask_key: str, feature_keys: Sequence[str] = ()) -> None:
        if isinstance(head, MultiHead):
            raise ValueError("A MultiHead cannot be applied to every step of a sequence. Give a single head.")
        self._head = head
        self.mask_key = mask_key
        self._feature_keys = tuple(feature_keys)

    @property
    def name(self) -> str | None:
        """See `Head`."""
        return f"{self._head.name}_sequential" if self._head.name else None

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self._head.logits_dimension

    @property
    def loss_reduction(self) -> str:
        """See `Head`."""
        return self._head.loss_reduction

    def _flat(
        self, labels: Any, logits: Any, features: Mapping[str, Any] | None
    ) -> tuple[Any, tf.Tensor, dict[str, Any]]:
        """Return labels, logits and features of the steps that count, one after the other."""
        features = features or {}
        missing = [key for key in (self.mask_key, *self._feature_keys) if key not in features]
        if missing:
            raise ValueError(
                f"The features lack {missing}; given: {sorted(features)}. The head of sequences reads its "
                "mask of steps and its weights there."
            )
        mask = tf.convert_to_tensor(features[self.mask_key])
        flat = {key: _flat_steps(features[key], mask) for key in self._feature_keys}
        labels = None if labels is None else _flat_steps(labels, mask)
        return labels, tf.boolean_mask(tf.convert_to_tensor(logits), mask), flat

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """See `Head`."""
        labels, logits, features = self._flat(labels, logits, features)
        return self._head.loss(labels, logits, features, mode, regularization_losses)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """See `Head`; those of all steps."""
        return self._head.predictions(logits, keys)

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """See `Head`."""
        return self._head.metrics(regularization_losses)

    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """See `Head`."""
        labels, logits, features = self._flat(labels, logits, features)
        return self._head.update_metrics(eval_metrics, features, logits, labels, regularization_losses)

    def create_estimator_spec(
        self,
        features: Mapping[str, Any],
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[Any] | None = None,
        train_op_fn: Callable[[tf.Tensor], Any] | None = None,
        update_ops: Sequence[Any] | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> EstimatorSpec:
        """See `Head`."""
        if mode == ModeKeys.PREDICT:
            spec = self._head.create_estimator_spec(features, mode, logits)
            return spec._replace(predictions={**spec.predictions, self.mask_key: features[self.mask_key]})
        labels, logits, features = self._flat(labels, logits, features)
        return self._head.create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            optimizer=optimizer,
            trainable_variables=trainable_variables,
            train_op_fn=train_op_fn,
            update_ops=update_ops,
            regularization_losses=regularization_losses,
        )


def _flat_steps(tensor: Any, mask: tf.Tensor) -> tf.Tensor:
    """Return the values `[steps that count, ...]`; a SparseTensor must hold just these."""
    if isinstance(tensor, tf.SparseTensor):
        values = tf.sparse.reorder(tensor).values
        count = tf.reduce_sum(tf.cast(mask, tf.int32))
        message = "A SparseTensor of labels or weights must have one value for each step of the sequences."
        with tf.control_dependencies([tf.debugging.assert_equal(tf.size(values), count, message=message)]):
            return tf.identity(values)
    return tf.boolean_mask(tf.convert_to_tensor(tensor), mask)
