"""Small models that tests train."""

import numpy as np
import tensorflow as tf

from appliance.estimator import EstimatorSpec, ModeKeys


def linear_model_fn(features, labels, mode, params):
    """y = w x + b by gradient descent; `params["learning_rate"]`, default 0.1."""
    weight = tf.compat.v1.get_variable("weight", [1, 1], initializer=tf.compat.v1.zeros_initializer())
    bias = tf.compat.v1.get_variable("bias", [1], initializer=tf.compat.v1.zeros_initializer())
    outputs = tf.matmul(features["x"], weight) + bias
    predictions = {"y": outputs, "double": 2.0 * outputs}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(params.get("learning_rate", 0.1))
    return EstimatorSpec(
        mode,
        predictions=predictions,
        loss=loss,
        train_op=optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step()),
        eval_metric_ops={"mae": tf.compat.v1.metrics.mean_absolute_error(labels, outputs)},
    )


def line(count=8, batch=4, repeat=1, slope=3.0):
    """Return an input_fn of `count` points on y = slope x, in order."""
    x = np.linspace(0.0, 1.0, count, dtype=np.float32)[:, None]

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(({"x": x}, slope * x)).repeat(repeat).batch(batch)

    return input_fn
