"""The model_fns of the canned estimators, each for a head and the settings of the model."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.canned.layers import Network, Part, build_linear, build_network
from appliance.estimator.canned.sdca import LinearSDCA, sdca_model_fn
from appliance.estimator.feature_columns import check_columns
from appliance.estimator.feature_inputs import FeatureInputs
from appliance.estimator.heads import BinaryClassHead, Head, MultiClassHead
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.optimizers import build_train_op, get_optimizer, gradients, scale_for_replicas

ModelFn = Callable[[Any, Any, str, Any], EstimatorSpec]

_LINEAR_LEARNING_RATE = 0.2
_COMBINED_DNN_LEARNING_RATE = 0.001
_COMBINED_LINEAR_LEARNING_RATE = 0.005


def classification_head(
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
    class_weight: Mapping[Any, float] | None = None,
) -> Head:
    """Return the head for `n_classes` exclusive classes.

    Raises:
        ValueError: there are fewer than two classes, or another argument is out of range.
    """
    if n_classes == 2:
        return BinaryClassHead(
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
            class_weight=class_weight,
        )
    return MultiClassHead(
        n_classes,
        weight_column=weight_column,
        label_vocabulary=label_vocabulary,
        loss_reduction=loss_reduction,
        class_weight=class_weight,
    )


def linear_model_fn(
    head: Head, feature_columns: Sequence[Any], optimizer: Any, sparse_combiner: str
) -> ModelFn:
    """Return the model_fn of a linear model.

    An optimizer given by name learns at 0.2; None is Ftrl at `min(0.2, 1 / sqrt(number of columns))`.

    Raises:
        ValueError: a column or the optimizer's name is not valid, or LinearSDCA cannot train the model.
    """
    columns = check_columns(feature_columns)
    _check_combiner(sparse_combiner)
    if isinstance(optimizer, LinearSDCA):
        return sdca_model_fn(head, columns, optimizer, sparse_combiner)
    if optimizer is None:
        optimizer = get_optimizer("Ftrl", min(_LINEAR_LEARNING_RATE, 1.0 / math.sqrt(len(columns))))
    optimizer = resolved(optimizer, _LINEAR_LEARNING_RATE)

    def model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
        part = build_linear(
            FeatureInputs(features, training=mode == ModeKeys.TRAIN),
            columns,
            head.logits_dimension,
            sparse_combiner,
            mode,
        )
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=part.logits,
            optimizer=optimizer,
            trainable_variables=part.variables,
        )

    return model_fn


def dnn_model_fn(head: Head, network: Network, optimizer: Any) -> ModelFn:
    """Return the model_fn of a feed-forward network. An optimizer given by name has Keras' learning rate.

    Raises:
        ValueError: a column, a layer's size or the optimizer's name is not valid.
    """
    network = _checked_network(network, "feature_columns", "hidden_units")
    optimizer = resolved(optimizer, None)

    def model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
        part = build_network(
            FeatureInputs(features, training=mode == ModeKeys.TRAIN), network, head.logits_dimension, mode
        )
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=part.logits,
            optimizer=optimizer,
            trainable_variables=part.variables,
            update_ops=part.update_ops,
        )

    return model_fn


def combined_model_fn(
    head: Head,
    network: Network,
    dnn_optimizer: Any,
    linear_feature_columns: Sequence[Any] | None,
    linear_optimizer: Any,
    linear_sparse_combiner: str,
) -> ModelFn:
    """Return the model_fn of a linear model and a network whose logits are summed; either may have no
    columns.

    Optimizers given by name learn at 0.001 (network) and `min(0.005, 1 / sqrt(number of columns))` (linear).
    The network's optimizer counts the global step; the linear one's counts its own steps, unless it is alone.

    Raises:
        ValueError: there are no columns at all, or a column, layer size or name is not valid.
    """
    if not linear_feature_columns and not network.feature_columns:
        raise ValueError("Either linear_feature_columns or dnn_feature_columns must be defined.")
    linear_columns: list[Any] = []
    if linear_feature_columns:
        linear_columns = check_columns(linear_feature_columns, "linear_feature_columns")
        _check_combiner(linear_sparse_combiner)
        rate = min(_COMBINED_LINEAR_LEARNING_RATE, 1.0 / math.sqrt(len(linear_columns)))
        linear_optimizer = resolved(linear_optimizer, rate)
    if network.feature_columns:
        network = _checked_network(network, "dnn_feature_columns", "dnn_hidden_units")
        dnn_optimizer = resolved(dnn_optimizer, _COMBINED_DNN_LEARNING_RATE)

    def model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
        inputs = FeatureInputs(features, training=mode == ModeKeys.TRAIN)
        parts: list[tuple[Part, Any]] = []
        if network.feature_columns:
            parts.append((build_network(inputs, network, head.logits_dimension, mode), dnn_optimizer))
        if linear_columns:
            linear = build_linear(inputs, linear_columns, head.logits_dimension, linear_sparse_combiner, mode)
            parts.append((linear, linear_optimizer))

        def train(loss: tf.Tensor) -> tf.Operation:
            return _train_parts(parts, scale_for_replicas(loss, head.loss_reduction))

        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=parts[0][0].logits if len(parts) == 1 else parts[0][0].logits + parts[1][0].logits,
            train_op_fn=train if mode == ModeKeys.TRAIN else None,
        )

    return model_fn


def _train_parts(parts: Sequence[tuple[Part, Any]], loss: tf.Tensor) -> tf.Operation:
    # All gradients at once: one pass back through what the parts share.
    pairs = gradients(loss, [variable for part, _ in parts for variable in part.variables])
    operations = []
    for i, (part, optimizer) in enumerate(parts):
        own, pairs = pairs[: len(part.variables)], pairs[len(part.variables) :]
        operations.append(build_train_op(get_optimizer(optimizer), own, loss, count=i == 0))
        operations.extend(part.update_ops)
    return tf.group(*operations)


def resolved(optimizer: Any, learning_rate: float | None) -> Any:
    """Turn a name, or settings, into an optimizer when the estimator is made: mistakes are told there.

    Raises:
        ValueError: a name is unknown, or a setting is not valid.
    """
    return get_optimizer(optimizer, learning_rate) if isinstance(optimizer, str | Mapping) else optimizer


def _check_combiner(sparse_combiner: str) -> None:
    if sparse_combiner not in ("sum", "mean", "sqrtn"):
        raise ValueError(f"Invalid sparse_combiner: {sparse_combiner!r}. Use 'sum', 'mean' or 'sqrtn'.")


def _checked_network(network: Network, columns_argument: str, units_argument: str) -> Network:
    columns = check_columns(network.feature_columns, columns_argument)
    units = list(network.hidden_units or [])
    if not units and units_argument == "dnn_hidden_units":
        raise ValueError("dnn_hidden_units must be defined when dnn_feature_columns is specified.")
    wrong = [size for size in units if not isinstance(size, numbers.Integral) or size < 1]
    if wrong:
        raise ValueError(f"{units_argument} must be whole numbers of at least 1; got {wrong} in {units}.")
    activation = network.activation_fn
    if isinstance(activation, str):
        activation = tf.keras.activations.get(activation)
    return network._replace(
        feature_columns=columns, hidden_units=[int(size) for size in units], activation_fn=activation
    )
