"""Linear models trained by stochastic dual coordinate ascent.

References:
    Shalev-Shwartz and Zhang, Stochastic Dual Coordinate Ascent Methods for Regularized Loss Minimization,
    JMLR 14, 2013. Ma et al., Adding vs. Averaging in Distributed Primal-Dual Optimization, ICML 2015, for
    `num_loss_partitions`. Csiba et al., Stochastic Dual Coordinate Ascent with Adaptive Probabilities, ICML
    2015, for `adaptive`. Source: `tf.raw_ops.SdcaOptimizerV2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

from appliance.estimator.canned.dual_table import DualTable
from appliance.estimator.canned.layers import build_linear
from appliance.estimator.feature_columns import dense_tensor
from appliance.estimator.feature_inputs import ColumnState, FeatureInputs
from appliance.estimator.heads import (
    BinaryClassHead,
    Head,
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from appliance.estimator.heads.base import SingleHead
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys

_LOSSES: Mapping[type[Head], str] = {
    BinaryClassHead: "logistic_loss",
    LogisticRegressionHead: "logistic_loss",
    PoissonRegressionHead: "poisson_loss",
    RegressionHead: "squared_loss",
}


class LinearSDCA:
    """Trains linear estimators by stochastic dual coordinate ascent: no learning rate, and an optimum that
    does not depend on the order of the examples.

    For `LinearClassifier` with two classes, `LinearRegressor` with one value, and `LinearEstimator` with such
    a head; `sparse_combiner` must be `sum`. The examples of a category are told apart by their ids, under
    which what was learned from each is kept from step to step, so each example must come with the same id in
    every epoch.

    Args:
        example_id_column: the feature that holds the examples' ids: strings, `[batch]`.
        num_loss_partitions: how many workers train at once.
        num_table_shards: in how many tables the examples' dual variables are kept; None for one.
        symmetric_l1_regularization: strength of the L1 penalty, at least 0.
        symmetric_l2_regularization: strength of the L2 penalty, above 0; about the mean squared norm of the
            examples.
        adaptive: whether examples that are further from their optimum are visited more often.

    Raises:
        ValueError: a penalty is out of range.

    Source: `tf.estimator.experimental.LinearSDCA`.
    """

    def __init__(
        self,
        example_id_column: str,
        num_loss_partitions: int = 1,
        num_table_shards: int | None = None,
        symmetric_l1_regularization: float = 0.0,
        symmetric_l2_regularization: float = 1.0,
        adaptive: bool = False,
    ) -> None:
        if symmetric_l2_regularization <= 0.0:
            raise ValueError(
                f"symmetric_l2_regularization should be positive. Given: {symmetric_l2_regularization}."
            )
        if symmetric_l1_regularization < 0.0:
            raise ValueError(
                f"symmetric_l1_regularization should be non-negative. Given: {symmetric_l1_regularization}."
            )
        self.example_id_column = example_id_column
        self.num_loss_partitions = num_loss_partitions
        self.num_table_shards = num_table_shards or 1
        self.l1, self.l2 = symmetric_l1_regularization, symmetric_l2_regularization
        self.adaptive = adaptive

    def example_ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Return the examples' ids, strings `[batch]`.

        Raises:
            ValueError: they are missing, or no strings.
        """
        if self.example_id_column not in features:
            raise ValueError(
                f"LinearSDCA reads the examples' ids from the feature {self.example_id_column!r}, which is "
                f"not among the features given: {sorted(features)}. Return it from the input_fn: a different "
                "string for each example, the same in every epoch."
            )
        ids = tf.convert_to_tensor(features[self.example_id_column])
        if ids.dtype != tf.string:
            raise ValueError(
                f"The example ids in {self.example_id_column!r} must be strings; got {ids.dtype.name}. Use "
                "tf.strings.as_string in the input_fn."
            )
        return tf.reshape(ids, [-1])


class _Sparse(NamedTuple):
    """A categorical column in a batch: one entry for each category of an example.

    Fields:
        examples, ids: int64 `[entries]`: rows of the batch, and categories.
        values: float32 `[entries]`.
    """

    examples: tf.Tensor
    ids: tf.Tensor
    values: tf.Tensor


class _Weight(NamedTuple):
    """One of the model's variables, the one that SDCA moves before the L1 penalty shrinks it, and its input.

    Fields:
        variable: the model's.
        unshrunk: its twin.
        input: `_Sparse` or float32 `[batch, size]`.
    """

    variable: Any
    unshrunk: Any
    input: Any


def sdca_model_fn(
    head: Head, columns: Sequence[Any], optimizer: LinearSDCA, sparse_combiner: str
) -> Callable[[Any, Any, str, Any], EstimatorSpec]:
    """Return the model_fn of a linear model that is trained by LinearSDCA.

    Raises:
        ValueError: the head or the combiner does not suit it.
    """
    if sparse_combiner != "sum":
        raise ValueError(
            f'sparse_combiner must be "sum" when optimizer is a LinearSDCA object. Given: {sparse_combiner!r}'
        )
    loss_type = _LOSSES.get(type(head))
    if not isinstance(head, SingleHead) or loss_type is None or head.logits_dimension != 1:
        raise ValueError(
            f"LinearSDCA trains models for two classes or for one value; the head is a {type(head).__name__} "
            f"with {head.logits_dimension} logits. Use another optimizer."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        inputs = FeatureInputs(features)
        state = inputs.new_state()
        part = build_linear(inputs, columns, 1, sparse_combiner, mode, state)

        def train(loss: tf.Tensor) -> tf.Operation:
            examples = head.training_examples(labels, part.logits, features)
            ones = tf.ones_like(examples.labels)
            weights = ones if examples.weights is None else examples.weights
            batch = _Batch(
                optimizer.example_ids(features),
                tf.reshape(examples.labels, [-1]),
                tf.reshape(weights, [-1]),
                _weights(inputs, state, columns, part.variables[-1], ones),
            )
            # The loss is that of the weights before the step.
            with tf.control_dependencies([loss]):
                return _train_op(optimizer, loss_type, batch, config is None or config.is_chief)

        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=part.logits,
            train_op_fn=train if mode == ModeKeys.TRAIN else None,
        )

    return model_fn


class _Batch(NamedTuple):
    """A batch for the solver.

    Fields:
        ids: strings `[batch]`.
        labels, weights: float32 `[batch]`.
        sparse, dense: the variables with their inputs.
    """

    ids: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    model: tuple[list[_Weight], list[_Weight]]


def _weights(
    inputs: FeatureInputs, state: ColumnState, columns: Sequence[Any], bias: Any, ones: tf.Tensor
) -> tuple[list[_Weight], list[_Weight]]:
    """Return the variables for sparse and for dense input; the bias has the input 1."""
    sparse, dense = [], []
    for column in columns:
        variable = state.get_variable(column, "weights")
        if isinstance(column, fc.CategoricalColumn):
            pair = inputs.sparse_ids(column, state)
            sparse.append(_Weight(variable, _unshrunk(variable), _unique(pair)))
        else:
            dense.append(_Weight(variable, _unshrunk(variable), dense_tensor(inputs, column, state)))
    dense.append(_Weight(bias, _unshrunk(bias), ones))
    return sparse, dense


def _unshrunk(variable: Any) -> Any:
    name = f"{variable.op.name}_unshrunk"
    with tf.name_scope(""):
        return tf.Variable(lambda: tf.zeros(variable.shape, tf.float32), name=name)


def _unique(pair: Any) -> _Sparse:
    """Return the ids of each example once, with their weights added up; missing ones are dropped."""
    rows, ids = pair.id_tensor.indices[:, 0], tf.cast(pair.id_tensor.values, tf.int64)
    values = (
        tf.ones_like(ids, tf.float32)
        if pair.weight_tensor is None
        else tf.cast(pair.weight_tensor.values, tf.float32)
    )
    present = tf.where(ids >= 0)[:, 0]
    rows, ids, values = (tf.gather(part, present) for part in (rows, ids, values))
    width = tf.reduce_max(ids) + 1
    keys, position = tf.unique(rows * width + ids)
    return _Sparse(
        tf.math.floordiv(keys, width),
        tf.math.floormod(keys, width),
        tf.math.unsorted_segment_sum(values, position, tf.size(keys)),
    )


def _train_op(optimizer: LinearSDCA, loss_type: str, batch: _Batch, is_chief: bool) -> tf.Operation:
    """Return the operation of one step, which ends by adding one to the global step."""
    sparse, dense = batch.model
    table = DualTable(optimizer.num_table_shards)
    _summarize(optimizer, table, [*sparse, *dense])
    keys = tf.raw_ops.SdcaFprint(input=batch.ids)
    categories = [tf.unique(weight.input.ids)[0] for weight in sparse]
    gathered = [tf.gather(weight.unshrunk, ids) for weight, ids in zip(sparse, categories, strict=True)]
    solved = tf.raw_ops.SdcaOptimizerV2(
        sparse_example_indices=[weight.input.examples for weight in sparse],
        sparse_feature_indices=[weight.input.ids for weight in sparse],
        sparse_feature_values=[weight.input.values for weight in sparse],
        dense_features=[weight.input for weight in dense],
        example_weights=batch.weights,
        example_labels=batch.labels,
        sparse_indices=categories,
        sparse_weights=gathered,
        dense_weights=[weight.unshrunk.read_value() for weight in dense],
        example_state_data=table.lookup(keys),
        loss_type=loss_type,
        l1=optimizer.l1,
        l2=optimizer.l2,
        num_loss_partitions=optimizer.num_loss_partitions,
        num_inner_iterations=1,
        adaptive=optimizer.adaptive,
    )
    updates = [table.insert(keys, solved.out_example_state_data)]
    for weight, ids, change in zip(sparse, categories, solved.out_delta_sparse_weights, strict=True):
        updates.append(
            tf.raw_ops.ResourceScatterAdd(resource=weight.unshrunk.handle, indices=ids, updates=change)
        )
    for weight, change in zip(dense, solved.out_delta_dense_weights, strict=True):
        updates.append(weight.unshrunk.assign_add(change, read_value=False))
    if is_chief:
        shrinkage = optimizer.l1 / optimizer.l2
        with tf.control_dependencies(updates):
            updates = [_shrink(weight, shrinkage) for weight in [*sparse, *dense]]
    with tf.control_dependencies(updates):
        step = tf.compat.v1.train.get_or_create_global_step()
        return step.assign_add(1, read_value=False)


def _shrink(weight: _Weight, shrinkage: float) -> tf.Operation:
    """Give the model's variable the unshrunk value, after the proximal step of the L1 penalty."""
    value = weight.unshrunk.read_value()
    if shrinkage > 0:
        value = tf.sign(value) * tf.maximum(0.0, tf.abs(value) - shrinkage)
    return weight.variable.assign(value, read_value=False)


def _summarize(optimizer: LinearSDCA, table: DualTable, weights: Sequence[_Weight]) -> None:
    """Add summaries of the duality gap, which falls to zero at the optimum, and of the examples seen."""
    values = [tf.cast(weight.variable.read_value(), tf.float64) for weight in weights]
    l1 = optimizer.l1 * tf.add_n([tf.reduce_sum(tf.abs(value)) for value in values])
    l2 = optimizer.l2 * tf.add_n([tf.reduce_sum(tf.square(value)) for value in values])
    # The columns of an example's state: dual variable, primal loss, dual loss, weight.
    states = tf.cast(table.values(), tf.float64)
    _, primal, dual, total = tf.unstack(tf.reduce_sum(states, axis=0))
    with tf.name_scope(""):
        gap = tf.math.divide_no_nan(primal + dual + l1 + l2, total)
        tf.compat.v1.summary.scalar("approximate_duality_gap", gap)
        tf.compat.v1.summary.scalar("examples_seen", table.size())
