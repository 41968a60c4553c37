"""Linear models trained by dual coordinate ascent: the optimum in closed form, restarts and bad input."""

import numpy as np
import pytest
import tensorflow as tf

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
    ],
)
def test_bad_settings_and_ids_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
