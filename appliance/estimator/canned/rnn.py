"""Recurrent networks over sequence columns, for classes and with any head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

from appliance.estimator.canned.model_fns import ModelFn, classification_head
from appliance.estimator.canned.recurrence import CELLS, run_cell
from appliance.estimator.estimator import Estimator
from appliance.estimator.feature_columns import check_columns, create_state, dense_input, variable_scope_name
from appliance.estimator.feature_inputs import FeatureInputs
from appliance.estimator.heads import Head
from appliance.estimator.heads.sequential import SequentialHead
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.optimizers import get_optimizer
from appliance.estimator.run_config import RunConfig

_LEARNING_RATE = 0.05
_CLIP_NORM = 5.0
_MASK_KEY = "sequence_mask"


class RNNEstimator(Estimator):
    """A recurrent network over sequence columns with the head that it is given.

    Args:
        head: what turns the logits into loss, predictions and metrics; with `return_sequences` it is applied
            to every step.
        sequence_feature_columns: columns of sequences: `sequence_numeric_column`, and embedding or indicator
            columns of `sequence_categorical_column_*`. Their sequences must have the same lengths.
        context_feature_columns: dense columns of which every step gets the values.
        units: the size of the layer, or a list of sizes of several layers.
        cell_type: 'simple_rnn' (when None), 'lstm', 'gru', or a class of Keras cells.
        rnn_cell_fn: returns a Keras cell, or a list of cells; in place of `units` and `cell_type`.
        return_sequences: whether there are logits for every step, in place of the last one only.
        model_dir, config: as for `Estimator`.
        optimizer: a name, which then learns at 0.05 with gradients clipped to a norm of 5, a Keras or
            `tf.compat.v1.train` optimizer, or a callable without arguments that returns one.

    Raises:
        ValueError: an argument is unknown, or two exclude one another.

    Source: `tf.estimator.experimental.RNNEstimator`.
    """

    def __init__(
        self,
        head: Head,
        sequence_feature_columns: Sequence[Any],
        context_feature_columns: Sequence[Any] | None = None,
        units: int | Sequence[int] | None = None,
        cell_type: Any = None,
        rnn_cell_fn: Callable[[], Any] | None = None,
        return_sequences: bool = False,
        model_dir: str | None = None,
        optimizer: Any = "Adagrad",
        config: RunConfig | None = None,
    ) -> None:
        if return_sequences and not isinstance(head, SequentialHead):
            head = SequentialHead(head, _MASK_KEY)
        columns = check_columns(sequence_feature_columns, "sequence_feature_columns")
        context = (
            check_columns(context_feature_columns, "context_feature_columns")
            if (context_feature_columns)
            else []
        )
        layers = _recurrence(units, cell_type, rnn_cell_fn)
        super().__init__(
            _rnn_model_fn(head, columns, context, layers, return_sequences, _optimizer(optimizer)),
            model_dir=model_dir,
            config=config,
        )


class RNNClassifier(RNNEstimator):
    """A recurrent network over sequence columns, for classes.

    Args:
        sequence_feature_columns, context_feature_columns, units, cell_type, rnn_cell_fn, return_sequences,
            model_dir, optimizer, config: as for `RNNEstimator`.
        n_classes, label_vocabulary, loss_reduction: as for `DNNClassifier`.
        weight_column: as for `DNNClassifier`; with `return_sequences` the name of a feature `[batch, steps]`.
        sequence_mask: with `return_sequences`, the feature that says which steps count, bool `[batch,
            steps]`, and the prediction that repeats it; made from the sequences' lengths when it is missing.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.experimental.RNNClassifier`.
    """

    def __init__(
        self,
        sequence_feature_columns: Sequence[Any],
        context_feature_columns: Sequence[Any] | None = None,
        units: int | Sequence[int] | None = None,
        cell_type: Any = None,
        rnn_cell_fn: Callable[[], Any] | None = None,
        return_sequences: bool = False,
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        loss_reduction: str = "sum_over_batch_size",
        sequence_mask: str = _MASK_KEY,
        config: RunConfig | None = None,
    ) -> None:
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        if return_sequences:
            if weight_column is not None and not isinstance(weight_column, str):
                raise ValueError(
                    "With return_sequences the weight_column must be the name of a feature. Given: "
                    f"{weight_column!r}."
                )
            head = SequentialHead(head, sequence_mask, [weight_column] if weight_column else [])
        super().__init__(
            head,
            sequence_feature_columns,
            context_feature_columns,
            units=units,
            cell_type=cell_type,
            rnn_cell_fn=rnn_cell_fn,
            return_sequences=return_sequences,
            model_dir=model_dir,
            optimizer=optimizer,
            config=config,
        )


Recurrence = Callable[[tf.Tensor, tf.Tensor, bool], tuple[tf.Tensor, list[Any]]]
"""From inputs `[batch, steps, size]`, a mask and whether it trains to the outputs of all steps, variables."""


def _optimizer(optimizer: Any) -> Any:
    if not isinstance(optimizer, str):
        return optimizer
    named = get_optimizer(optimizer, _LEARNING_RATE)
    named.clipnorm = _CLIP_NORM
    return named


def _recurrence(units: Any, cell_type: Any, rnn_cell_fn: Callable[[], Any] | None) -> Recurrence:
    if rnn_cell_fn is not None:
        if units is not None or cell_type is not None:
            raise ValueError("units and cell_type must not be specified when using rnn_cell_fn.")
        return _keras_layers(rnn_cell_fn)
    sizes = [units] if isinstance(units, int) else list(units or [])
    if not sizes or min(sizes) < 1:
        raise ValueError(f"units must be whole numbers of at least 1. Given: {units!r}. Or give rnn_cell_fn.")
    kind = "simple_rnn" if cell_type is None else cell_type
    if not isinstance(kind, str):
        return _keras_layers(lambda: [kind(size) for size in sizes])
    if kind not in CELLS:
        raise ValueError(
            f"Unknown cell_type: {cell_type!r}. Supported strings are: {', '.join(CELLS)}; or give a class "
            "of Keras cells."
        )
    # The names that Keras 2 came to: a layer of its own for one size, cells in an RNN for a list of sizes.
    if isinstance(units, int) and cell_type is not None:
        scopes = [f"{kind}/{kind}_cell"]
    elif len(sizes) == 1:
        scopes = [f"rnn/{kind}_cell"]
    else:
        scopes = [f"rnn/stacked_rnn_cells/{kind}_cell{f'_{i}' if i else ''}" for i in range(len(sizes))]

    def run(inputs: tf.Tensor, mask: tf.Tensor, training: bool) -> tuple[tf.Tensor, list[Any]]:
        variables = []
        for scope, size in zip(scopes, sizes, strict=True):
            with tf.compat.v1.variable_scope(scope):
                inputs, own = run_cell(kind, size, inputs, mask)
            variables += own
        return inputs, variables

    return run


def _keras_layers(make_cells: Callable[[], Any]) -> Recurrence:
    def run(inputs: tf.Tensor, mask: tf.Tensor, training: bool) -> tuple[tf.Tensor, list[Any]]:
        layer = tf.keras.layers.RNN(make_cells(), return_sequences=True)
        outputs = layer(inputs, mask=mask, training=training)
        return outputs, [variable.value for variable in layer.trainable_variables]

    return run


def _rnn_model_fn(
    head: Head,
    columns: Sequence[Any],
    context: Sequence[Any],
    recurrence: Recurrence,
    return_sequences: bool,
    optimizer: Any,
) -> ModelFn:
    def model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
        inputs = FeatureInputs(features)
        values, mask, variables = _sequence_input(inputs, columns)
        if context:
            with tf.compat.v1.variable_scope("dense_features"):
                own, own_variables = dense_input(inputs, context)
            steps = tf.shape(values)[1]
            values = tf.concat([values, tf.tile(tf.expand_dims(own, 1), [1, steps, 1])], axis=2)
            variables = variables + own_variables
        with tf.compat.v1.variable_scope("rnn_model"):
            outputs, own_variables = recurrence(values, mask, mode == ModeKeys.TRAIN)
            # Steps that fill up repeat the output before them, so that the last step has the last output.
            logits, logits_variables = _logits(
                outputs if return_sequences else outputs[:, -1, :], head.logits_dimension
            )
        if isinstance(head, SequentialHead) and head.mask_key not in features:
            features = {**features, head.mask_key: mask}
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=logits,
            optimizer=optimizer,
            trainable_variables=[*variables, *own_variables, *logits_variables],
        )

    return model_fn


def _sequence_input(inputs: FeatureInputs, columns: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
    """Return the columns' values `[batch, steps, size]`, the mask `[batch, steps]`, and variables."""
    for column in columns:
        if not isinstance(column, fc.SequenceDenseColumn):
            raise ValueError(
                f"sequence_feature_columns takes columns of sequences; {column.name!r} is a "
                f"{type(column).__name__}. Use sequence_numeric_column, or embedding_column or "
                "indicator_column of a sequence_categorical_column_*; others go to context_feature_columns."
            )
    inputs.check(columns)
    state = inputs.new_state()
    values, lengths = [], []
    with tf.compat.v1.variable_scope("sequence_features"):
        for column in columns:
            with tf.compat.v1.variable_scope(variable_scope_name(column.name)):
                create_state(column, state)
                tensor, length = column.get_sequence_dense_tensor(inputs.cache, state)
            size = column.variable_shape.num_elements()
            values.append(tf.reshape(tensor, tf.concat([tf.shape(tensor)[:2], [size]], axis=0)))
            lengths.append(tf.cast(length, tf.int64))
    names = [column.name for column in columns]
    message = f"The sequences of one example differ in length between the columns {names}."
    checks = [tf.debugging.assert_equal(lengths[0], other, message=message) for other in lengths[1:]]
    with tf.control_dependencies(checks):
        values = values[0] if len(values) == 1 else tf.concat(values, axis=2)
    return values, tf.sequence_mask(lengths[0], tf.shape(values)[1]), state.trainable_variables


def _logits(outputs: tf.Tensor, units: int) -> tuple[tf.Tensor, list[Any]]:
    with tf.compat.v1.variable_scope("logits"):
        kernel = tf.compat.v1.get_variable(
            "kernel",
            [outputs.shape[-1], units],
            initializer=tf.compat.v1.glorot_uniform_initializer(),
            use_resource=True,
        )
        bias = tf.compat.v1.get_variable(
            "bias", [units], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
        )
    return tf.tensordot(outputs, kernel, 1) + bias, [kernel, bias]
