"""The interface of heads, and what the heads with one set of labels share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from appliance.estimator.heads.checks import (
    call_loss_fn,
    check_logits,
    check_loss_fn,
    check_reduction,
    example_weights,
)
from appliance.estimator.heads.metrics import Pair, mean
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.optimizers import (
    build_train_op,
    forget_variables,
    get_optimizer,
    gradients,
    scale_for_replicas,
)


class Examples(NamedTuple):
    """What a head worked out for one batch.

    Fields:
        labels: class ids or values, `[D0, ..., DN, label dimension]`.
        losses: float32 `[D0, ..., DN, loss dimension]`, neither weighted nor reduced.
        weights: float32 `[D0, ..., DN, 1]` (or the logits' shape); None without a weight column.
    """

    labels: tf.Tensor
    losses: tf.Tensor
    weights: tf.Tensor | None


class Head(abc.ABC):
    """The top of a model: turns logits into loss, predictions, metrics, a train operation and export outputs.

    Heads are used by the canned estimators, in a `model_fn` of one's own (`create_estimator_spec`), and
    without any Estimator, in eager code too (`loss`, `predictions`, `metrics`, `update_metrics`).

    Source: `tf.estimator.Head`.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """The name behind every metric key and summary tag; None for none."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """Size of the last dimension of the logits."""

    @property
    @abc.abstractmethod
    def loss_reduction(self) -> str:
        """How the losses of a batch become one: `sum_over_batch_size` or `sum`."""

    @abc.abstractmethod
    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Return the training loss of a batch, a float32 scalar, with the regularization losses added.

        Raises:
            ValueError: labels, logits or weights are missing or do not fit.
            tf.errors.InvalidArgumentError: the same, found at run time of a graph.
        """

    @abc.abstractmethod
    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, tf.Tensor]:
        """Return the predictions, by key; all of them when `keys` is None.

        Raises:
            ValueError: the logits' shape does not fit, or a key is unknown.
        """

    @abc.abstractmethod
    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """Return new Keras metrics, by key."""

    @abc.abstractmethod
    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Update the metrics that `metrics` returned with a batch, and return them."""

    @abc.abstractmethod
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
        """Return what a `model_fn` returns.

        Args:
            features: dict of features; the weight column is among them.
            mode: one of `ModeKeys`.
            logits: `[D0, ..., DN, logits_dimension]`.
            labels: needed to train and to evaluate.
            optimizer: to train: anything that `optimizers.get_optimizer` takes. Exactly one of `optimizer`
                and `train_op_fn`.
            trainable_variables: the variables for the optimizer; needed but for a `tf.compat.v1.train`
                optimizer.
            train_op_fn: to train: from the loss to the train operation, which must advance the global step.
            update_ops: operations to run at every train step, such as the moving averages of batch
                normalisation.
            regularization_losses: scalars that are added to the loss.

        Raises:
            ValueError: an argument is missing, or does not fit the others.
        """

    def _key(self, key: str) -> str:
        return f"{key}/{self.name}" if self.name else key


class SingleHead(Head):
    """A head with one set of labels: subclasses say what their labels, losses, metrics and outputs are."""

    def __init__(
        self, weight_column: Any, loss_reduction: str, loss_fn: Callable[..., Any] | None, name: str | None
    ) -> None:
        check_loss_fn(loss_fn)
        self._weight_column = weight_column
        self._loss_reduction = check_reduction(loss_reduction)
        self._loss_fn = loss_fn
        self._name = name

    _loss_dimension = 1
    _weights_per_logit = False

    @property
    def name(self) -> str | None:
        """See `Head`."""
        return self._name

    @property
    def loss_reduction(self) -> str:
        """See `Head`."""
        return self._loss_reduction

    @abc.abstractmethod
    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        """Return labels as class ids or values, checked."""

    @abc.abstractmethod
    def _default_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, when the user gave no loss function."""

    @abc.abstractmethod
    def _graph_metrics(
        self, examples: Examples, logits: tf.Tensor, predictions: Mapping[Any, tf.Tensor]
    ) -> dict[str, Pair]:
        """Return (value, update) pairs under plain keys, but for the losses."""

    @abc.abstractmethod
    def _export_outputs(self, predictions: Mapping[Any, tf.Tensor]) -> dict[str, Any]:
        """Return the ExportOutputs by signature name."""

    def _examples(self, labels: Any, logits: tf.Tensor, features: Mapping[str, Any] | None) -> Examples:
        labels = self._processed_labels(logits, labels)
        if self._loss_fn is not None:
            losses = call_loss_fn(self._loss_fn, labels, logits, features, self._loss_dimension)
        else:
            losses = self._default_losses(labels, logits)
        weights = example_weights(features, self._weight_column, logits, self._weights_per_logit)
        return Examples(labels, losses, weights)

    def training_examples(self, labels: Any, logits: tf.Tensor, features: Mapping[str, Any]) -> Examples:
        """Return what a training batch comes to, with the weights of the classes; errors as for `loss`."""
        return self._by_class(self._examples(labels, logits, features))

    def _by_class(self, examples: Examples) -> Examples:
        """Weight the examples of a training batch by their class, when the head has weights of classes."""
        by_class = self._class_weights_of(examples.labels)
        if by_class is None:
            return examples
        weights = by_class if examples.weights is None else by_class * examples.weights
        return examples._replace(weights=weights)

    def _class_weights_of(self, labels: tf.Tensor) -> tf.Tensor | None:
        """Return the weight of each label's class, of the labels' shape; None when classes have none."""
        return None

    def _reduced(
        self, examples: Examples, regularization_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        losses = examples.losses if examples.weights is None else examples.losses * examples.weights
        loss = tf.reduce_sum(losses) if self._loss_reduction == "sum" else tf.reduce_mean(losses)
        if regularization_losses is not None:
            loss += tf.add_n(list(regularization_losses))
        return loss

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """See `Head`. The reduction divides by the number of losses, not by the sum of the weights."""
        with tf.name_scope("losses"):
            logits = check_logits(logits, self.logits_dimension)
            examples = self._examples(labels, logits, features)
            if mode == ModeKeys.TRAIN:
                examples = self._by_class(examples)
            return self._reduced(examples, regularization_losses)

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
        with tf.name_scope(self._name or "head"):
            forget_variables(optimizer)
            logits = check_logits(logits, self.logits_dimension)
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(
                    mode, predictions=predictions, export_outputs=self._export_outputs(predictions)
                )
            with tf.name_scope("losses"):
                examples = self._examples(labels, logits, features)
                if mode == ModeKeys.TRAIN:
                    examples = self._by_class(examples)
                loss = self._reduced(examples, regularization_losses)
            if mode == ModeKeys.EVAL:
                metrics = self._eval_metrics(
                    examples, logits, labels, features, predictions, regularization_losses
                )
                return EstimatorSpec(mode, predictions=predictions, loss=loss, eval_metric_ops=metrics)
        train_op = create_train_op(
            loss, optimizer, trainable_variables, train_op_fn, update_ops, self._loss_reduction
        )
        summarize_losses(loss, regularization_losses, self._key)
        return EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=train_op)

    def _eval_metrics(
        self,
        examples: Examples,
        logits: tf.Tensor,
        labels: Any,
        features: Mapping[str, Any],
        predictions: Mapping[Any, tf.Tensor],
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> dict[str, Any]:
        if tf.executing_eagerly():
            metrics = self.metrics(regularization_losses)
            return self.update_metrics(metrics, features, logits, labels, regularization_losses)
        with tf.name_scope("metrics"):
            pairs = {
                "average_loss": mean(examples.losses, examples.weights, "average_loss"),
                **self._graph_metrics(examples, logits, predictions),
            }
            if regularization_losses is not None:
                total = tf.add_n(list(regularization_losses))
                pairs["regularization_loss"] = mean(total, None, "regularization_loss")
        return {self._key(key): pair for key, pair in pairs.items()}


def summarize_losses(
    loss: tf.Tensor, regularization_losses: Sequence[tf.Tensor] | None, tag: Callable[[str], str]
) -> None:
    """Add summaries of the losses of a training graph under their tags."""
    if tf.executing_eagerly():
        return
    with tf.name_scope(""):
        tf.compat.v1.summary.scalar(tag("loss"), loss)
        if regularization_losses is not None:
            total = tf.add_n(list(regularization_losses))
            tf.compat.v1.summary.scalar(tag("regularization_loss"), total)


def create_train_op(
    loss: tf.Tensor,
    optimizer: Any,
    trainable_variables: Sequence[Any] | None,
    train_op_fn: Callable[[tf.Tensor], Any] | None,
    update_ops: Sequence[Any] | None,
    loss_reduction: str,
) -> Any:
    """Return the train operation; the arguments are those of `Head.create_estimator_spec`.

    Raises:
        ValueError: not exactly one of `optimizer` and `train_op_fn` is given, or an argument is of the wrong
        type.
    """
    if update_ops is not None and not isinstance(update_ops, list | tuple):
        raise ValueError(f"update_ops should be a list or a tuple. Given type: {type(update_ops).__name__}.")
    if (optimizer is None) == (train_op_fn is None):
        state = "both be None" if optimizer is None else "both be set"
        raise ValueError(f"train_op_fn and optimizer cannot {state}. Give one of them to train.")
    if train_op_fn is not None:
        train_op = train_op_fn(loss)
    else:
        optimizer = get_optimizer(optimizer)
        variables = _variables_for(optimizer, trainable_variables)
        scaled = scale_for_replicas(loss, loss_reduction)
        train_op = build_train_op(optimizer, gradients(scaled, variables), scaled)
    return tf.group(train_op, *update_ops) if update_ops else train_op


def _variables_for(optimizer: Any, trainable_variables: Sequence[Any] | None) -> list[Any]:
    if trainable_variables is None and isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return list(tf.compat.v1.trainable_variables())
    if not isinstance(trainable_variables, list | tuple):
        raise ValueError(
            "trainable_variables should be a list or a tuple of the variables that the optimizer is to "
            f"change. Given: {trainable_variables!r}."
        )
    # Keras 3 layers hold wrappers around TensorFlow's variables.
    return [
        variable if isinstance(variable, tf.Variable) else variable.value for variable in trainable_variables
    ]
