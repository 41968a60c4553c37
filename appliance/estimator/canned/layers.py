"""The two parts of the canned models: a linear model and a feed-forward network over feature columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from appliance.estimator.feature_columns import dense_input, linear_model
from appliance.estimator.feature_inputs import ColumnState, FeatureInputs
from appliance.estimator.model_fn import ModeKeys

_BATCH_NORM_MOMENTUM = 0.999
_BATCH_NORM_EPSILON = 0.001


class Part(NamedTuple):
    """One part of a model.

    Fields:
        logits: float32 `[batch, units]`.
        variables: the trainable ones.
        update_ops: operations to run at every train step.
    """

    logits: tf.Tensor
    variables: list[Any]
    update_ops: list[Any]


class Network(NamedTuple):
    """The settings of a feed-forward network.

    Fields:
        hidden_units: the sizes of the hidden layers.
        feature_columns: its dense columns.
        activation_fn: applied in each hidden layer; None for none. The estimators turn names into functions.
        dropout: the probability of dropping a hidden unit's output in training, or None.
        batch_norm: whether to normalise over the batch after each hidden layer's activation.
        mixed_precision: whether the layers compute in bfloat16, with float32 variables and float32 logits.
    """

    hidden_units: Sequence[int]
    feature_columns: Sequence[Any]
    activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None
    dropout: float | None
    batch_norm: bool
    mixed_precision: bool = False


def build_network(inputs: FeatureInputs, network: Network, units: int, mode: str) -> Part:
    """Build `dnn/...`: the columns' values, hidden layers and a layer of `units` logits.

    Kernels start glorot-uniform, biases at zero.
    """
    training = mode == ModeKeys.TRAIN
    updates: list[Any] = []
    with tf.compat.v1.variable_scope("dnn"):
        with tf.compat.v1.variable_scope("input_from_feature_columns/input_layer"):
            values, variables = dense_input(inputs, network.feature_columns)
        for i, size in enumerate(network.hidden_units):
            with tf.compat.v1.variable_scope(f"hiddenlayer_{i}"):
                values, layer_variables = _dense_layer(values, size, network.mixed_precision)
                if callable(network.activation_fn):
                    values = network.activation_fn(values)
                if network.dropout is not None and training:
                    values = tf.nn.dropout(values, rate=network.dropout)
                if network.batch_norm:
                    with tf.compat.v1.variable_scope(f"batchnorm_{i}"):
                        values = tf.cast(values, tf.float32)
                        values, normalizer_variables = _batch_norm(values, training, updates)
                    layer_variables += normalizer_variables
                variables = variables + layer_variables
                _summarize_layer(values, training)
        with tf.compat.v1.variable_scope("logits"):
            logits, layer_variables = _dense_layer(values, units, network.mixed_precision)
            logits = tf.cast(logits, tf.float32)
            _summarize_layer(logits, training)
    return Part(logits, variables + layer_variables, updates)


def _dense_layer(values: tf.Tensor, size: int, mixed_precision: bool) -> tuple[tf.Tensor, list[Any]]:
    kernel = _variable("kernel", [values.shape[-1], size], tf.compat.v1.glorot_uniform_initializer())
    bias = _variable("bias", [size], tf.compat.v1.zeros_initializer())
    if not mixed_precision:
        return tf.nn.bias_add(tf.matmul(values, kernel), bias), [kernel, bias]
    # The range of bfloat16 is that of float32, so the loss needs no scaling, as it would with float16.
    half = [tf.cast(tensor, tf.bfloat16) for tensor in (values, kernel, bias)]
    return tf.nn.bias_add(tf.matmul(half[0], half[1]), half[2]), [kernel, bias]


def _batch_norm(values: tf.Tensor, training: bool, updates: list[Any]) -> tuple[tf.Tensor, list[Any]]:
    """Normalise over the batch when training, with the moving averages otherwise.

    References:
        Ioffe and Szegedy, Batch Normalization, ICML 2015. The constants are tf.estimator's.
    """
    size = [values.shape[-1]]
    ones, zeros = tf.compat.v1.ones_initializer(), tf.compat.v1.zeros_initializer()
    gamma, beta = _variable("gamma", size, ones), _variable("beta", size, zeros)
    averages = [_average("moving_mean", size, zeros), _average("moving_variance", size, ones)]
    mean, variance = (average.read_value() for average in averages)
    if training:
        old = (mean, variance)
        mean, variance = tf.nn.moments(values, axes=[0])
        for average, before, now in zip(averages, old, (mean, variance), strict=True):
            change = (before - now) * (1.0 - _BATCH_NORM_MOMENTUM)
            updates.append(average.assign_sub(change, read_value=False))
    normalized = tf.nn.batch_normalization(values, mean, variance, beta, gamma, _BATCH_NORM_EPSILON)
    return normalized, [gamma, beta]


def _variable(name: str, shape: Sequence[int | None], initializer: Any) -> Any:
    return tf.compat.v1.get_variable(name, shape, initializer=initializer, use_resource=True)


def _average(name: str, shape: Sequence[int | None], initializer: Any) -> Any:
    """Create a moving average: each replica keeps its own, and their mean is what is read and saved."""
    return tf.compat.v1.get_variable(
        name,
        shape,
        initializer=initializer,
        trainable=False,
        use_resource=True,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def _summarize_layer(values: tf.Tensor, training: bool) -> None:
    if training:
        values = tf.cast(values, tf.float32)
        # The tags are the layers' names: variable scopes open a name scope of the same name.
        tf.compat.v1.summary.scalar("fraction_of_zero_values", _zero_fraction(values))
        tf.compat.v1.summary.histogram("activation", values)


def build_linear(
    inputs: FeatureInputs,
    columns: Sequence[Any],
    units: int,
    sparse_combiner: str,
    mode: str,
    state: ColumnState | None = None,
) -> Part:
    """Build `linear/linear_model/...`: `units` logits. The last of the variables is the bias; `state` gets
    the columns' own.
    """
    with tf.compat.v1.variable_scope("linear"):
        with tf.compat.v1.variable_scope("linear_model"):
            logits, bias, variables = linear_model(inputs, columns, units, sparse_combiner, state)
        if mode == ModeKeys.TRAIN:
            if units > 1:
                tf.compat.v1.summary.histogram("bias", bias)
            else:
                tf.compat.v1.summary.scalar("bias", bias[0])
            flat = [tf.reshape(variable, [-1]) for variable in variables]
            tf.compat.v1.summary.scalar("fraction_of_zero_weights", _zero_fraction(tf.concat(flat, axis=0)))
    return Part(logits, [*variables, bias], [])


def _zero_fraction(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(tf.equal(values, 0.0), tf.float32))
