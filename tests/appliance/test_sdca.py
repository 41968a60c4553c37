"""Linear models trained by dual coordinate ascent: the optimum in closed form, restarts and bad input."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column.feature_column_v2 import StateManager

from appliance import estimator
from appliance.estimator.experimental import LinearSDCA

COUNT = 12
_random = np.random.RandomState(0)
X = _random.normal(size=(COUNT, 2)).astype(np.float32)
Y = (X @ [[1.0], [-2.0]] + 0.5 + _random.normal(0, 0.1, (COUNT, 1))).astype(np.float32)
WEIGHT = _random.uniform(0.5, 2, COUNT).astype(np.float32)
FEATURES = {"x": X, "id": np.array([f"row {i}" for i in range(COUNT)]), "w": WEIGHT}
COLUMNS = [tf.feature_column.numeric_column("x", shape=2)]


def data(features=FEATURES, labels=Y, repeat=None):
    return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).repeat(repeat).batch(COUNT)


def test_regression_reaches_the_optimum_of_ridge_regression(tmp_path):
    """Minimises `sum w (y - prediction)^2 / 2 + l2 |weights|^2 / 2`, over two runs that share the duals."""
    for _ in range(2):
        model = estimator.LinearRegressor(
            COLUMNS,
            optimizer=LinearSDCA("id", symmetric_l2_regularization=3.0),
            weight_column="w",
            model_dir=str(tmp_path),
        )
        model.train(data(), steps=40)
    inputs = np.hstack([X, np.ones((COUNT, 1))])
    gram = inputs.T @ (WEIGHT[:, None] * inputs) + 3.0 * np.eye(3)
    optimum = np.linalg.solve(gram, inputs.T @ (WEIGHT[:, None] * Y))
    np.testing.assert_allclose(
        np.vstack(
            [
                model.get_variable_value("linear/linear_model/x/weights"),
                model.get_variable_value("linear/linear_model/bias_weights")[:, None],
            ]
        ),
        optimum,
        rtol=1e-4,
    )
    keys = model.get_variable_value("ShardedMutableHashTable-1-of-1-keys")
    assert len(np.unique(keys[np.any(keys != 0, axis=1)], axis=0)) >= COUNT


def test_counts_are_learned_with_the_poisson_head():
    """At the optimum the bias' gradient is zero: `sum(prediction - label) + l2 bias = 0`."""
    counts = np.random.RandomState(1).poisson(np.exp(0.5 + 0.3 * X[:, :1])).astype(np.float32)
    optimizer = LinearSDCA("id", symmetric_l2_regularization=0.5)
    model = estimator.LinearEstimator(estimator.PoissonRegressionHead(), COLUMNS, optimizer=optimizer)
    model.train(data(labels=counts), steps=300)
    metrics = model.evaluate(data(labels=counts, repeat=1))
    excess = COUNT * (metrics["prediction/mean"] - metrics["label/mean"])
    [bias] = model.get_variable_value("linear/linear_model/bias_weights")
    assert excess == pytest.approx(-0.5 * bias, rel=0.05)


def test_l1_penalty_makes_weights_zero():
    model = estimator.LinearRegressor(COLUMNS, optimizer=LinearSDCA("id", symmetric_l1_regularization=1e3))
    model.train(data(), steps=5)
    assert not model.get_variable_value("linear/linear_model/x/weights").any()


class OwnState(StateManager):
    """The variables of the columns of a model of one's own, by column."""

    def __init__(self, sizes):
        self.weights = {
            column: tf.compat.v1.get_variable(
                f"own/{column.name}", [size, 1], initializer=tf.compat.v1.zeros_initializer()
            )
            for column, size in sizes.items()
        }

    def get_variable(self, feature_column, name):
        assert name == "weights"
        return self.weights[feature_column]


def own_model_fn(optimizer, loss_type="squared_loss", weight="w", columns=None):
    """Return the model_fn of a linear model on `x` and `kind` that `get_train_step` trains."""
    kind = tf.feature_column.categorical_column_with_identity("kind", 3)
    sizes = {COLUMNS[0]: 2, kind: 3}

    def model_fn(features, labels, mode):
        state = OwnState(sizes)
        bias = tf.compat.v1.get_variable("own/bias", [1], initializer=tf.compat.v1.zeros_initializer())
        weights = state.weights[kind], state.weights[COLUMNS[0]]
        outputs = tf.gather(weights[0], features["kind"]) + tf.matmul(features["x"], weights[1]) + bias
        loss = tf.reduce_mean(tf.square(outputs - labels))
        step = tf.compat.v1.train.get_global_step()
        model, train_op = optimizer.get_train_step(
            state, weight, loss_type, columns or [*sizes], features, labels, bias, step
        )
        return estimator.EstimatorSpec(mode, loss=loss, train_op=model.update_weights(train_op))

    return model_fn


KINDS = {**FEATURES, "kind": np.arange(COUNT) % 3}


def train_own(**settings):
    estimator.Estimator(own_model_fn(LinearSDCA("id"), **settings)).train(data(KINDS), steps=1)


def test_get_train_step_trains_a_linear_model_of_ones_own():
    """It ends where LinearRegressor ends, on variables that someone else holds."""
    optimizer = LinearSDCA("id", symmetric_l1_regularization=0.5, symmetric_l2_regularization=2.0)
    own = estimator.Estimator(own_model_fn(optimizer)).train(data(KINDS), steps=40)
    kind = tf.feature_column.categorical_column_with_identity("kind", 3)
    canned = estimator.LinearRegressor([*COLUMNS, kind], optimizer=optimizer, weight_column="w")
    canned.train(data(KINDS), steps=40)
    assert own.get_variable_value("global_step") == 40
    for mine, theirs in (("x", "x/weights"), ("kind", "kind/weights"), ("bias", "bias_weights")):
        value = canned.get_variable_value(f"linear/linear_model/{theirs}")
        assert value.any()
        # Within a step, examples come in an order of chance.
        np.testing.assert_allclose(own.get_variable_value(f"own/{mine}"), value, rtol=1e-4, atol=1e-6)


def test_steps_without_update_weights_leave_the_variables_to_another_worker():
    """`get_train_step` alone moves the twins, and counts only where it is given a global step."""
    with tf.Graph().as_default():
        features, labels = tf.compat.v1.data.make_one_shot_iterator(data()()).get_next()
        state = OwnState({COLUMNS[0]: 2})
        bias = tf.Variable([0.0], name="bias")
        model, train_op = LinearSDCA("id").get_train_step(
            state, None, "squared_loss", COLUMNS, features, labels, bias, None
        )
        gap, update = model.approximate_duality_gap(), model.update_weights(train_op)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train_op)
            assert not session.run(state.weights[COLUMNS[0]]).any()
            first = session.run(gap)
            for _ in range(20):
                session.run(update)
            assert session.run(state.weights[COLUMNS[0]]).all()
            assert abs(session.run(gap)) < abs(first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LinearSDCA("id", symmetric_l2_regularization=0),
            "symmetric_l2_regularization should be positive",
        ),
        (lambda: LinearSDCA("id", symmetric_l1_regularization=-1), "should be non-negative. Given: -1"),
        (
            lambda: estimator.LinearClassifier(COLUMNS, n_classes=3, optimizer=LinearSDCA("id")),
            "for two classes or for one value; the head is a MultiClassHead with 3 logits",
        ),
        (
            lambda: estimator.LinearRegressor(COLUMNS, optimizer=LinearSDCA("id"), sparse_combiner="mean"),
            'sparse_combiner must be "sum"',
        ),
        (
            lambda: estimator.LinearRegressor(COLUMNS, optimizer=LinearSDCA("key")).train(data(), steps=1),
            r"ids from the feature 'key', which is not among the features given: \['id', 'w', 'x'\]",
        ),
        (
            lambda: estimator.LinearRegressor(COLUMNS, optimizer=LinearSDCA("w")).train(data(), steps=1),
            "example ids in 'w' must be strings; got float32",
        ),
        (
            lambda: train_own(loss_type="mean_squared_error"),
            "Unknown loss_type 'mean_squared_error'. Use one of hinge_loss, logistic_loss, poisson_loss",
        ),
        (
            lambda: train_own(weight="heavy"),
            r"weight column 'heavy' is not in the features: \['id', 'kind', 'w', 'x'\]",
        ),
        (
            lambda: train_own(columns=[tf.feature_column.sequence_numeric_column("x")]),
            "LinearSDCA takes dense or categorical columns; 'x' is a SequenceNumericColumn",
        ),
        (
            lambda: train_own(columns=[tf.feature_column.numeric_column("height")]),
            "reads the feature 'height', which is not among the features given",
        ),
    ],
)
def test_bad_settings_and_ids_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
