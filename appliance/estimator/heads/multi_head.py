"""Several heads as one: each with labels and logits of its own, and their losses summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.export import PredictOutput
from appliance.estimator.heads.base import Head, create_train_op, summarize_losses
from appliance.estimator.heads.classes import wanted_keys
from appliance.estimator.heads.metrics import mean
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.optimizers import forget_variables, training_scope


class MultiHead(Head):
    """Several heads as one, for several kinds of labels; the first is what is served by default.

    Labels are a dict from head name to labels. Logits are such a dict too, or one tensor `[D0, ..., DN, sum
    of the heads' logits dimensions]`, cut in the order of the heads. The loss is the weighted sum of the
    heads' losses; predictions have the keys `(head name, key)`.

    Args:
        heads: heads with different names.
        head_weights: the weight of each head's loss; None for 1.

    Raises:
        ValueError: there are no heads, one has no name of its own, or there is not one weight for each.

    Source: `tf.estimator.MultiHead`.
    """

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        if not heads:
            raise ValueError(f"Must specify heads. Given: {heads}")
        if head_weights and len(head_weights) != len(heads):
            raise ValueError(
                f"heads and head_weights must have the same size. Given {len(heads)} heads, "
                f"{len(head_weights)} weights."
            )
        names = [head.name for head in heads]
        for head in heads:
            if head.name is None:
                raise ValueError(
                    f"All given heads must have name specified. Given: {head}. Its labels, logits and "
                    "predictions are found by the name."
                )
        if len(set(names)) < len(names):
            raise ValueError(f"The heads must have different names. Given: {names}.")
        self._heads = {str(head.name): head for head in heads}
        self._weights = dict(zip(self._heads, head_weights or [1.0] * len(heads), strict=True))

    @property
    def name(self) -> str:
        """The names of the heads, joined by `_`."""
        return "_".join(self._heads)

    @property
    def logits_dimension(self) -> int:
        """See `Head`: the sum over the heads."""
        return sum(head.logits_dimension for head in self._heads.values())

    @property
    def loss_reduction(self) -> str:
        """See `Head`.

        Raises:
            ValueError: the heads differ in it.
        """
        reductions = [head.loss_reduction for head in self._heads.values()]
        if len(set(reductions)) > 1:
            raise ValueError(f"The loss_reduction must be the same for different heads. Given: {reductions}.")
        return reductions[0]

    def _split(self, logits: Any) -> Mapping[str, Any]:
        if isinstance(logits, Mapping):
            self._check_names(logits, "logits")
            return logits
        logits = tf.convert_to_tensor(logits)
        dimensions = [head.logits_dimension for head in self._heads.values()]
        if logits.shape.rank is not None and logits.shape[-1] not in (None, sum(dimensions)):
            raise ValueError(
                f"Could not split logits of shape {logits.shape} among the heads with individual logits "
                f"dimensions: {dimensions}. The last dimension of the logits tensor should equal "
                f"{sum(dimensions)} but is {logits.shape[-1]}."
            )
        with tf.name_scope("split_logits"):
            return dict(zip(self._heads, tf.split(logits, dimensions, axis=-1), strict=True))

    def _own_labels(self, labels: Any) -> Mapping[str, Any]:
        if not isinstance(labels, Mapping):
            raise ValueError(
                f"labels must be a dict. Given: {labels}. Return one from the input_fn, with the labels of "
                f"each head under its name: {list(self._heads)}."
            )
        self._check_names(labels, "labels")
        return labels

    def _check_names(self, given: Mapping[str, Any], what: str) -> None:
        missing = [name for name in self._heads if name not in given]
        if missing:
            raise ValueError(f"{what} has missing values for head(s): {missing}. Given: {sorted(given)}.")

    def _merged(
        self, losses: Mapping[str, tf.Tensor], regularization_losses: Sequence[tf.Tensor] | None
    ) -> tf.Tensor:
        with tf.name_scope("merge_losses"):
            merged = tf.add_n([losses[name] * self._weights[name] for name in self._heads])
            return merged if regularization_losses is None else merged + tf.add_n(list(regularization_losses))

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """See `Head`: the weighted sum of the heads' losses."""
        logits, labels = self._split(logits), self._own_labels(labels)
        losses = {
            name: head.loss(labels[name], logits[name], features, mode) for name, head in self._heads.items()
        }
        return self._merged(losses, regularization_losses)

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """See `Head`. Each key is `(head name, key of that head)`."""
        own = self._split(logits)
        merged = {
            (name, key): value
            for name, head in self._heads.items()
            for key, value in head.predictions(own[name]).items()
        }
        return {key: merged[key] for key in wanted_keys(keys, tuple(merged))}

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """See `Head`. Keys: `loss/<head>`, the heads' own, regularization_loss when there are such losses."""
        metrics: dict[str, Any] = {}
        for name, head in self._heads.items():
            metrics[f"loss/{name}"] = tf.keras.metrics.Mean(name=f"loss_{name}")
            metrics.update(head.metrics())
        if regularization_losses is not None:
            metrics[self._key("regularization_loss")] = tf.keras.metrics.Mean(name="regularization_loss")
        return metrics

    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """See `Head`."""
        logits, labels = self._split(logits), self._own_labels(labels)
        for name, head in self._heads.items():
            eval_metrics[f"loss/{name}"].update_state(head.loss(labels[name], logits[name], features))
            head.update_metrics(eval_metrics, features, logits[name], labels[name])
        if regularization_losses is not None:
            total = tf.add_n(list(regularization_losses))
            eval_metrics[self._key("regularization_loss")].update_state(total)
        return eval_metrics

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
        """See `Head`. `regularization_losses` are added to the sum of the heads' losses."""
        with tf.name_scope(self.name):
            forget_variables(optimizer)
            own_logits = self._split(logits)
            own_labels = {} if mode == ModeKeys.PREDICT else self._own_labels(labels)
            specs = {
                name: head.create_estimator_spec(
                    features, mode, own_logits[name], own_labels.get(name), train_op_fn=_no_train_op
                )
                for name, head in self._heads.items()
            }
            predictions = {
                (name, key): value for name, spec in specs.items() for key, value in spec.predictions.items()
            }
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, predictions=predictions, export_outputs=_merged_outputs(specs))
            loss = self._merged({name: spec.loss for name, spec in specs.items()}, regularization_losses)
            if mode == ModeKeys.EVAL:
                metrics = self._eval_metrics(specs, regularization_losses)
                return EstimatorSpec(mode, predictions=predictions, loss=loss, eval_metric_ops=metrics)
            # The name that tf.estimator comes to, after one `training` for each of the heads.
            with training_scope(f"training_{len(self._heads)}"):
                train_op = create_train_op(
                    loss, optimizer, trainable_variables, train_op_fn, update_ops, self.loss_reduction
                )
        summarize_losses(loss, regularization_losses, lambda key: key)
        return EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=train_op)

    def _eval_metrics(
        self, specs: Mapping[str, EstimatorSpec], regularization_losses: Sequence[tf.Tensor] | None
    ) -> dict[str, Any]:
        metrics = {key: value for spec in specs.values() for key, value in spec.eval_metric_ops.items()}
        more = {f"loss/{name}": spec.loss for name, spec in specs.items()}
        if regularization_losses is not None:
            more[self._key("regularization_loss")] = tf.add_n(list(regularization_losses))
        for key, value in more.items():
            if tf.executing_eagerly():
                metrics[key] = tf.keras.metrics.Mean(name=key.replace("/", "_"))
                metrics[key].update_state(value)
            else:
                metrics[key] = mean(value, None, key)
        return metrics


def _no_train_op(loss: tf.Tensor) -> tf.Operation:
    return tf.constant(1) if tf.executing_eagerly() else tf.no_op()


def _merged_outputs(specs: Mapping[str, EstimatorSpec]) -> dict[str, Any]:
    """Return each head's outputs under its name, the first one's as default, all predictions as one."""
    first = next(iter(specs.values()))
    outputs = {"serving_default": first.export_outputs["serving_default"]}
    merged = {}
    for name, spec in specs.items():
        for key, output in spec.export_outputs.items():
            outputs[name if key == "serving_default" else f"{name}/{key}"] = output
        merged.update({f"{name}/{key}": value for key, value in spec.predictions.items()})
    outputs["predict"] = PredictOutput(merged)
    return outputs
