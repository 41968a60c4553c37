"""model_fns that use Keras layers and Keras optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import Estimator, EstimatorSpec, ModeKeys, RegressionHead, minimize
from tests.appliance.test_keras import Losses, feed, table


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(7)


def layers_model_fn(features, labels, mode, params):
    hidden = keras.layers.Dense(8, "relu", kernel_initializer="glorot_uniform")(features["x"])
    hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden, training=mode == ModeKeys.TRAIN)
    hidden = keras.layers.Dropout(params["dropout"])(hidden, training=mode == ModeKeys.TRAIN)
    outputs = keras.layers.Dense(1)(hidden)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=outputs)
    loss = tf.reduce_mean(keras.losses.mean_squared_error(labels, outputs))
    metric = keras.metrics.MeanAbsoluteError()
    if mode == ModeKeys.EVAL:
        metric.update_state(labels, outputs)
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"mae": metric})
    return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, params["optimizer"]))


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.Adam(0.05), lambda: keras.optimizers.AdamW(0.05), "SGD"],
    ids=["Adam", "AdamW", "SGD"],
)
def test_layers_keep_their_names_and_move_their_averages(optimizer, tmp_path):
    x, y = table()
    keras.layers.Dense(1)  # What a process has made before changes no name.
    estimator = Estimator(layers_model_fn, str(tmp_path), params={"dropout": 0.0, "optimizer": optimizer})
    before = estimator.evaluate(feed({"x": x}, y))
    estimator.train(feed({"x": x}, y, num_epochs=15))
    estimator.train(feed({"x": x}, y, num_epochs=5))
    names = set(estimator.get_variable_names())
    assert {"dense/kernel", "batch_normalization/moving_mean", "dense_1/bias", "global_step"} <= names
    assert np.abs(estimator.get_variable_value("batch_normalization/moving_mean")).max() > 0.05
    after = estimator.evaluate(feed({"x": x}, y))
    assert after["global_step"] == 80
    assert after["loss"] < before["loss"]
    assert next(estimator.predict(feed({"x": x}))).shape == (1,)


def test_dropout_in_a_model_fn_differs_from_step_to_step(tmp_path):
    def model_fn(features, labels, mode):
        outputs = keras.layers.Dense(1, kernel_initializer="ones")(
            keras.layers.Dropout(0.5, seed=3)(features, training=mode == ModeKeys.TRAIN)
        )
        loss = tf.reduce_mean(tf.square(outputs))
        train_op = tf.compat.v1.train.get_global_step().assign_add(1, read_value=False)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    losses = Losses()
    x = np.ones([1, 100], np.float32)
    Estimator(model_fn, str(tmp_path)).train(feed(x, x, num_epochs=8, batch_size=1), hooks=[losses])
    assert len(set(losses.values)) > 4


def test_layers_and_an_optimizer_serve_a_head(tmp_path):
    x, y = table()

    def model_fn(features, labels, mode):
        model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        return RegressionHead().create_estimator_spec(
            features,
            mode,
            logits=model(features["x"]),
            labels=labels,
            optimizer=keras.optimizers.SGD(0.1),
            trainable_variables=model.trainable_variables,
        )

    estimator = Estimator(model_fn, str(tmp_path))
    first = estimator.evaluate(feed({"x": x}, y))["loss"]
    estimator.train(feed({"x": x}, y, num_epochs=20))
    assert estimator.evaluate(feed({"x": x}, y))["loss"] < 0.2 * first


def test_minimize_gives_the_losses_of_fit(tmp_path):
    x, y = table()

    def model_fn(features, labels, mode):
        layer = keras.layers.Dense(1, kernel_initializer="zeros", kernel_constraint="non_neg")
        outputs = layer(features)
        loss = tf.reduce_mean(tf.square(outputs - labels))
        return EstimatorSpec(mode, loss=loss, train_op=minimize(loss, keras.optimizers.Adam(0.1)))

    losses = Losses()
    Estimator(model_fn, str(tmp_path)).train(feed(x, y, num_epochs=2), hooks=[losses])
    layer = keras.layers.Dense(1, kernel_initializer="zeros", kernel_constraint="non_neg")
    model = keras.Sequential([keras.Input([4]), layer])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    expected = [model.train_on_batch(x[i : i + 16], y[i : i + 16]) for i in [0, 16, 32, 48] * 2]
    np.testing.assert_allclose(losses.values, expected, rtol=1e-5)


def test_minimize_says_when_there_is_nothing_to_train():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="depends on none of the 0 trainable"):
        minimize(tf.constant(1.0), "SGD")
