"""From TensorFlow's own feature columns to the input of a network, and to a linear model.

TensorFlow still ships `tf.feature_column` and its protocol (`create_state`, `get_dense_tensor`,
`get_sparse_tensors`); what Keras 3 dropped are the layers that drive it. `dense_input` and `linear_model`
take their place in graphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

from appliance.estimator.feature_inputs import ColumnState, FeatureInputs, SingleIds

_ROWS, _ROWS_OR_ZEROS = "ApplianceRows", "ApplianceRowsOrZeros"


def check_columns(columns: Any, argument: str = "feature_columns") -> list[Any]:
    """Return the columns sorted by name, after checking them.

    Raises:
        ValueError: there are none, one is not a feature column, or two have the same name.
    """
    listed = [columns] if isinstance(columns, fc.fc_types.FeatureColumn) else columns
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise ValueError(f"{argument} should be a list of feature columns; got {type(columns).__name__}.")
    listed = list(listed)
    if not listed:
        raise ValueError(f"{argument} is empty. Give at least one column made with tf.feature_column.")
    by_name: dict[str, Any] = {}
    for column in listed:
        if not isinstance(column, fc.fc_types.FeatureColumn):
            raise ValueError(
                f"Items of {argument} must be feature columns (tf.feature_column.*); got {column!r} of type "
                f"{type(column).__name__}."
            )
        if column.name in by_name:
            raise ValueError(
                f"{argument} has two columns named {column.name!r}: {by_name[column.name]} and {column}. "
                "Remove one, or give it a feature of another name."
            )
        by_name[column.name] = column
    return [by_name[name] for name in sorted(by_name)]


def variable_scope_name(name: str) -> str:
    """Return a column's name with the characters replaced that a variable scope may not contain."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)


def dense_input(inputs: FeatureInputs, columns: Sequence[Any]) -> tuple[tf.Tensor, list[Any]]:
    """Concatenate dense columns, sorted by name, into one tensor.

    Embedding variables are created as `<current variable scope>/<column name>/embedding_weights`.

    Returns:
        float32 `[batch, sum of the columns' sizes]`, and the trainable variables.

    Raises:
        ValueError: a column is not dense, or its feature is missing or does not fit.

    Source: `tf.keras.layers.DenseFeatures` of Keras 2.
    """
    columns = check_columns(columns)
    for column in columns:
        if not isinstance(column, fc.DenseColumn):
            raise ValueError(
                f"The input of a network takes dense columns; {column.name!r} is a {type(column).__name__}. "
                "Wrap it in tf.feature_column.embedding_column or tf.feature_column.indicator_column."
            )
    inputs.check(columns)
    state = inputs.new_state()
    tensors = []
    for column in columns:
        with tf.compat.v1.variable_scope(variable_scope_name(column.name)):
            create_state(column, state)
            tensors.append(dense_tensor(inputs, column, state))
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=1), state.trainable_variables


def create_state(column: Any, state: ColumnState) -> None:
    """Create the variables of a column in the current variable scope (shared ones: at the root, once)."""
    if not isinstance(column, fc.SharedEmbeddingColumn):
        column.create_state(state)
        return
    # The column's own creator would keep one variable, and with it the graph, for every graph it was ever
    # used in.
    creator = column.shared_embedding_column_creator
    root = tf.compat.v1.VariableScope(reuse=tf.compat.v1.AUTO_REUSE, use_resource=True)
    with tf.compat.v1.variable_scope(root, auxiliary_name_scope=False):
        variable = tf.compat.v1.get_variable(
            creator._name,
            shape=(creator._num_buckets, creator.dimension),
            initializer=creator._initializer,
            trainable=creator._trainable,
        )
    if creator._ckpt_to_load_from is not None:
        tf.compat.v1.train.init_from_checkpoint(
            creator._ckpt_to_load_from, {creator._tensor_name_in_ckpt: variable}
        )
    state.add_variable(column, variable, "embedding_weights")


def dense_tensor(inputs: FeatureInputs, column: Any, state: ColumnState) -> tf.Tensor:
    """Return a dense column's values as float32 `[batch, size]`."""
    size = column.variable_shape.num_elements()
    if isinstance(column, fc.EmbeddingColumn | fc.SharedEmbeddingColumn):
        return _embedding(inputs, column, state)
    if isinstance(column, fc.IndicatorColumn | fc.BucketizedColumn):
        categorical = column.categorical_column if isinstance(column, fc.IndicatorColumn) else column
        single = inputs.single_ids(categorical)
        if single is not None:
            return tf.one_hot(single.ids, size)
    tensor = column.get_dense_tensor(inputs.cache, state)
    if tensor.shape.rank == 2 and tensor.shape[1] == size:
        return tensor
    elements = tensor.shape[1:].num_elements()
    if elements is not None and elements != size:
        raise ValueError(
            f"Feature column {column.name!r} expects {size} values an example (shape "
            f"{column.variable_shape}); the feature has shape {tensor.shape}. Change the column's shape or "
            "the feature's."
        )
    return tf.reshape(tensor, [-1, size])


def _embedding(inputs: FeatureInputs, column: Any, state: ColumnState) -> tf.Tensor:
    categorical = column.categorical_column
    if isinstance(categorical, fc.SequenceCategoricalColumn):
        raise ValueError(
            f"Column {column.name!r} embeds the sequence column {categorical.name!r}, which a network "
            "without recurrence cannot take. Use a categorical_column_with_* that is not a sequence, or an "
            "RNN estimator."
        )
    weights = state.get_variable(column, "embedding_weights")
    if getattr(column, "ckpt_to_load_from", None) is not None:
        tf.compat.v1.train.init_from_checkpoint(
            column.ckpt_to_load_from, {column.tensor_name_in_ckpt: weights}
        )
    single = inputs.single_ids(categorical)
    if single is not None and column.max_norm is None:
        return lookup(weights, single, variable_scope_name(column.name), training=inputs.training)
    pair = inputs.sparse_ids(categorical, state)
    return tf.nn.safe_embedding_lookup_sparse(
        weights, pair.id_tensor, pair.weight_tensor, combiner=column.combiner, max_norm=column.max_norm
    )


def lookup(weights: Any, single: SingleIds, name: str, *, training: bool) -> tf.Tensor:
    """Return a row of `weights` for each example, zeros where it has no value: `[batch, row size]`.

    Where `training`, the graph's operations are marked for the gradients below: a process that computes
    others from that graph needs to import this module.
    """
    graph = tf.compat.v1.get_default_graph()
    marks = {"ResourceGather": _ROWS, "SelectV2": _ROWS_OR_ZEROS} if training else {}
    with graph.gradient_override_map(marks):
        rows = tf.gather(weights, single.rows, name=name)
        if single.present is None:
            return rows
        return tf.where(single.present, rows, tf.zeros([], rows.dtype))


@tf.RegisterGradient(_ROWS)
def _rows_gradient(operation: Any, gradient: tf.Tensor) -> tuple[tf.IndexedSlices, None]:
    """Return the gradient of rows, each chosen by one id, for the variable.

    TensorFlow's own is made for ids of any rank: ten operations in each step that reshape nothing.
    """
    variable, rows = operation.inputs
    return tf.IndexedSlices(gradient, rows, tf.raw_ops.VariableShape(input=variable)), None


@tf.RegisterGradient(_ROWS_OR_ZEROS)
def _rows_or_zeros_gradient(operation: Any, gradient: tf.Tensor) -> tuple[None, tf.Tensor, None]:
    """Return the gradient for the rows: the zeros are a constant, and nothing is broadcast to the rows."""
    return None, tf.where(operation.inputs[0], gradient, tf.zeros([], gradient.dtype)), None


def linear_model(
    inputs: FeatureInputs,
    columns: Sequence[Any],
    units: int,
    sparse_combiner: str = "sum",
    state: ColumnState | None = None,
) -> tuple[tf.Tensor, Any, list[Any]]:
    """Build `sum over columns of (values x weights) + bias`.

    Variables, in the current variable scope: `<column name>/weights` of shape `[buckets or size, units]` and
    `bias_weights` of shape `[units]`, all zero at first.

    Args:
        inputs: the features.
        columns: dense or categorical columns.
        units: the size of the output.
        sparse_combiner: how a categorical column with several values an example is reduced: sum, mean or
            sqrtn.
        state: gets the columns' variables; None for a new one.

    Returns:
        float32 `[batch, units]`; the bias variable; the other trainable variables.

    Raises:
        ValueError: a column is neither dense nor categorical, or its feature is missing or does not fit.

    Source: `tf.keras.experimental.LinearModel` and tf.estimator's linear model.
    """
    columns = check_columns(columns)
    for column in columns:
        if not isinstance(column, fc.DenseColumn | fc.CategoricalColumn):
            raise ValueError(
                f"A linear model takes dense or categorical columns; {column.name!r} is a "
                f"{type(column).__name__}."
            )
    inputs.check(columns)
    state = inputs.new_state() if state is None else state
    sums = []
    dense: list[tuple[tf.Tensor, Any]] = []
    for column in columns:
        categorical = isinstance(column, fc.CategoricalColumn)
        with tf.compat.v1.variable_scope(variable_scope_name(column.name)):
            create_state(column, state)
            rows = column.num_buckets if categorical else column.variable_shape.num_elements()
            weights = state.create_variable(column, "weights", [rows, units], initializer=_zeros())
            if categorical:
                sums.append(_weighted_sum(inputs, column, state, weights, sparse_combiner))
            else:
                dense.append((dense_tensor(inputs, column, state), weights))
    if dense:
        # One product for all dense columns, for the gain in speed.
        values, kernels = zip(*dense, strict=True)
        sums.append(tf.matmul(_concat(values, axis=1), _concat(kernels, axis=0)))
    bias = tf.compat.v1.get_variable("bias_weights", [units], initializer=_zeros(), use_resource=True)
    total = sums[0] if len(sums) == 1 else tf.add_n(sums)
    return tf.nn.bias_add(total, bias), bias, state.trainable_variables


def _weighted_sum(
    inputs: FeatureInputs, column: Any, state: ColumnState, weights: Any, sparse_combiner: str
) -> tf.Tensor:
    single = inputs.single_ids(column)
    if single is not None:
        return lookup(weights, single, "weighted_sum", training=inputs.training)
    pair = inputs.sparse_ids(column, state)
    return tf.nn.safe_embedding_lookup_sparse(
        weights, pair.id_tensor, pair.weight_tensor, combiner=sparse_combiner
    )


def _zeros() -> Any:
    return tf.compat.v1.zeros_initializer()


def _concat(tensors: Sequence[Any], axis: int) -> Any:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=axis)
