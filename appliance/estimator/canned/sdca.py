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
from appliance.estimator.checks import check_one_replica
from appliance.estimator.feature_columns import check_columns, dense_tensor
from appliance.estimator.feature_inputs import FeatureInputs
from appliance.estimator.heads import (
    BinaryClassHead,
    Head,
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from appliance.estimator.heads.base import SingleHead
from appliance.estimator.heads.checks import example_weights
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys

_LOSSES: Mapping[type[Head], str] = {
    BinaryClassHead: "logistic_loss",
    LogisticRegressionHead: "logistic_loss",
    PoissonRegressionHead: "poisson_loss",
    RegressionHead: "squared_loss",
}
_LOSS_TYPES = ("hinge_loss", "logistic_loss", "poisson_loss", "smooth_hinge_loss", "squared_loss")


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

    def get_train_step(
        self,
        state_manager: fc.StateManager,
        weight_column_name: Any,
        loss_type: str,
        feature_columns: Sequence[Any],
        features: Mapping[str, Any],
        targets: Any,
        bias_var: Any,
        global_step: Any,
    ) -> tuple[SDCAModel, tf.Operation]:
        """Build a training step for a linear model of one's own, in the default graph.

        Args:
            state_manager: what has each column's variable, `[buckets or size, 1]`, under the name `weights`.
            weight_column_name: the feature, or the numeric column, with the weights of the examples; None
                when all weigh the same.
            loss_type: `squared_loss`, `logistic_loss`, `poisson_loss`, `hinge_loss` or `smooth_hinge_loss`.
            feature_columns: the columns of the model, dense or categorical.
            features: the features of a batch, with the ids of the examples.
            targets: `[batch]` or `[batch, 1]` numbers; 0 or 1 for the losses of classes.
            bias_var: the variable, `[1]`, that is added to each prediction.
            global_step: the variable to which each step adds one; None: nothing counts.

        Returns:
            the model, and the operation of a step. The latter moves twins of the variables; the variables
            themselves change when `model.update_weights(operation)` is run, as one worker is to do.

        Raises:
            ValueError: `loss_type` is unknown, a feature is missing or does not fit, or a column is neither
                dense nor categorical.

        Source: `tf.estimator.experimental.LinearSDCA.get_train_step`.
        """
        targets = tf.reshape(tf.cast(tf.convert_to_tensor(targets), tf.float32), [-1, 1])
        weights = example_weights(features, weight_column_name, targets)
        examples = _Examples(
            self.example_ids(features), targets, tf.ones_like(targets) if weights is None else weights
        )
        columns, inputs = check_columns(feature_columns), FeatureInputs(features)
        inputs.check(columns)
        model = SDCAModel(
            self, loss_type, examples, _weights(inputs, state_manager, columns, bias_var, examples)
        )
        return model, model.minimize(global_step)


class _Examples(NamedTuple):
    """The examples of a batch.

    Fields:
        ids: strings `[batch]`.
        labels, weights: float32 `[batch, 1]`.
    """

    ids: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


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
        if mode == ModeKeys.TRAIN:
            check_one_replica("LinearSDCA")
        inputs = FeatureInputs(features)
        state = inputs.new_state()
        part = build_linear(inputs, columns, 1, sparse_combiner, mode, state)

        def train(loss: tf.Tensor) -> tf.Operation:
            batch = head.training_examples(labels, part.logits, features)
            weights = tf.ones_like(batch.labels) if batch.weights is None else batch.weights
            examples = _Examples(optimizer.example_ids(features), batch.labels, weights)
            own = _weights(inputs, state, columns, part.variables[-1], examples)
            # The loss is that of the weights before the step.
            with tf.control_dependencies([loss]):
                model = SDCAModel(optimizer, loss_type, examples, own)
                step = model.minimize(tf.compat.v1.train.get_or_create_global_step())
            return model.update_weights(step) if config is None or config.is_chief else step

        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=part.logits,
            train_op_fn=train if mode == ModeKeys.TRAIN else None,
        )

    return model_fn


class _Weights(NamedTuple):
    """The variables of a model, by the kind of their input."""

    sparse: list[_Weight]
    dense: list[_Weight]


def _weights(
    inputs: FeatureInputs, state: fc.StateManager, columns: Sequence[Any], bias: Any, examples: _Examples
) -> _Weights:
    """Return the variables with their inputs; the bias has the input 1.

    Raises:
        ValueError: a column is neither dense nor categorical.
    """
    weights = _Weights([], [])
    for column in columns:
        if not isinstance(column, fc.DenseColumn | fc.CategoricalColumn):
            raise ValueError(
                f"LinearSDCA takes dense or categorical columns; {column.name!r} is a "
                f"{type(column).__name__}."
            )
        variable = state.get_variable(column, "weights")
        if isinstance(column, fc.CategoricalColumn):
            pair = inputs.sparse_ids(column, state)
            weights.sparse.append(_Weight(variable, _unshrunk(variable), _unique(pair)))
        else:
            values = dense_tensor(inputs, column, state)
            weights.dense.append(_Weight(variable, _unshrunk(variable), values))
    weights.dense.append(_Weight(bias, _unshrunk(bias), tf.ones_like(examples.labels)))
    return weights


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


class SDCAModel:
    """A linear model and a batch of examples, of which the step of the training is made.

    Raises:
        ValueError: `loss_type` is unknown.
    """

    def __init__(self, optimizer: LinearSDCA, loss_type: str, examples: _Examples, weights: _Weights) -> None:
        if loss_type not in _LOSS_TYPES:
            raise ValueError(f"Unknown loss_type {loss_type!r}. Use one of {', '.join(_LOSS_TYPES)}.")
        self._optimizer, self._loss_type = optimizer, loss_type
        self._examples = examples
        self._weights = weights
        self._table = DualTable(optimizer.num_table_shards)
        with tf.name_scope(""):
            tf.compat.v1.summary.scalar("approximate_duality_gap", self.approximate_duality_gap())
            tf.compat.v1.summary.scalar("examples_seen", self._table.size())

    def approximate_duality_gap(self) -> tf.Tensor:
        """Return how far the training is from the optimum at most, float64: zero is there."""
        l1, l2 = self._optimizer.l1, self._optimizer.l2
        weights = [*self._weights.sparse, *self._weights.dense]
        values = [tf.cast(weight.variable.read_value(), tf.float64) for weight in weights]
        l1_penalty = l1 * tf.add_n([tf.reduce_sum(tf.abs(value)) for value in values])
        l2_penalty = l2 * tf.add_n([tf.reduce_sum(tf.square(value)) for value in values])
        # The columns of an example's state: dual variable, primal loss, dual loss, weight.
        states = tf.cast(self._table.values(), tf.float64)
        _, primal, dual, total = tf.unstack(tf.reduce_sum(states, axis=0))
        return tf.math.divide_no_nan(primal + dual + l1_penalty + l2_penalty, total)

    def minimize(self, global_step: Any = None) -> tf.Operation:
        """Return the operation of one step on the batch, which ends by adding one to `global_step`."""
        keys = tf.raw_ops.SdcaFprint(input=self._examples.ids)
        categories = [tf.unique(weight.input.ids)[0] for weight in self._weights.sparse]
        solved = self._solved(categories, self._table.lookup(keys))
        updates = [self._table.insert(keys, solved.out_example_state_data)]
        sparse = zip(self._weights.sparse, categories, solved.out_delta_sparse_weights, strict=True)
        for weight, ids, change in sparse:
            handle = weight.unshrunk.handle
            updates.append(tf.raw_ops.ResourceScatterAdd(resource=handle, indices=ids, updates=change))
        for weight, change in zip(self._weights.dense, solved.out_delta_dense_weights, strict=True):
            updates.append(weight.unshrunk.assign_add(change, read_value=False))
        if global_step is None:
            return tf.group(*updates)
        with tf.control_dependencies(updates):
            return global_step.assign_add(1, read_value=False)

    def _solved(self, categories: Sequence[tf.Tensor], states: tf.Tensor) -> Any:
        """Return the changes of the weights, and the examples' new states."""
        sparse, dense = self._weights
        return tf.raw_ops.SdcaOptimizerV2(
            sparse_example_indices=[weight.input.examples for weight in sparse],
            sparse_feature_indices=[weight.input.ids for weight in sparse],
            sparse_feature_values=[weight.input.values for weight in sparse],
            dense_features=[weight.input for weight in dense],
            example_weights=tf.reshape(self._examples.weights, [-1]),
            example_labels=tf.reshape(self._examples.labels, [-1]),
            sparse_indices=categories,
            sparse_weights=[tf.gather(w.unshrunk, ids) for w, ids in zip(sparse, categories, strict=True)],
            dense_weights=[weight.unshrunk.read_value() for weight in dense],
            example_state_data=states,
            loss_type=self._loss_type,
            l1=self._optimizer.l1,
            l2=self._optimizer.l2,
            num_loss_partitions=self._optimizer.num_loss_partitions,
            num_inner_iterations=1,
            adaptive=self._optimizer.adaptive,
        )

    def update_weights(self, train_op: tf.Operation) -> tf.Operation:
        """Return the operation that gives the model's variables their values, after `train_op`.

        These are the unshrunk ones after the proximal step of the L1 penalty.
        """
        shrinkage = self._optimizer.l1 / self._optimizer.l2
        with tf.control_dependencies([train_op]):
            return tf.group(
                *(_shrink(weight, shrinkage) for weight in [*self._weights.sparse, *self._weights.dense])
            )


def _shrink(weight: _Weight, shrinkage: float) -> tf.Operation:
    value = weight.unshrunk.read_value()
    if shrinkage > 0:
        value = tf.sign(value) * tf.maximum(0.0, tf.abs(value) - shrinkage)
    return weight.variable.assign(value, read_value=False)
