"""A small network, trained by Estimator, by Keras, and by a bare loop: at what rate each takes its steps."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np

BATCH = 64
HIDDEN = (64, 32)
FEATURES = 20
ROWS = 100_000


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 features `[rows, 20]` and values `[rows, 1]`."""
    x = np.random.default_rng(0).random((ROWS, FEATURES), dtype=np.float32)
    return x, x.sum(axis=1, keepdims=True)


def dataset(x: np.ndarray, y: np.ndarray) -> Any:
    """Return the input that all contenders read."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).repeat().batch(BATCH)


def graph_model(features: Any, labels: Any) -> tuple[Any, Any]:
    """Build the network in the default graph; return (loss, train op)."""
    import tensorflow as tf

    v1 = tf.compat.v1
    layer, width = features, FEATURES
    for index, units in enumerate((*HIDDEN, 1)):
        with v1.variable_scope(f"layer_{index}"):
            kernel = v1.get_variable("kernel", [width, units], initializer=v1.glorot_uniform_initializer())
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        layer, width = tf.nn.bias_add(tf.matmul(layer, kernel), bias), units
        if units != 1:
            layer = tf.nn.relu(layer)
    loss = tf.reduce_mean(tf.square(layer - labels))
    return loss, v1.train.AdagradOptimizer(0.05).minimize(loss, global_step=v1.train.get_global_step())


def estimator_rate(x: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Return the steps/s of `Estimator.train` with a default RunConfig, from its own log every 100 steps."""
    from appliance import estimator

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss, train_op = graph_model(features, labels)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    times: list[float] = []

    def note(values: dict[str, Any]) -> str:
        times.append(time.perf_counter())
        return f"step {values['global_step/Read/ReadVariableOp:0']}"

    clock = estimator.LoggingTensorHook(
        ["global_step/Read/ReadVariableOp:0"], every_n_iter=100, formatter=note
    )
    with tempfile.TemporaryDirectory() as folder:
        estimator.Estimator(model_fn, model_dir=folder).train(
            lambda: dataset(x, y), hooks=[clock], steps=steps + 101
        )
    return 100 * (len(times) - 2) / (times[-1] - times[1])


def keras_rate(x: np.ndarray, y: np.ndarray, steps: int, steps_per_execution: int) -> float:
    """Return the steps/s of the second epoch of `fit`; the first compiles."""
    import keras

    times: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),
    )
    layers = [keras.layers.Dense(units, activation="relu") for units in HIDDEN]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adagrad(0.05), "mse", steps_per_execution=steps_per_execution)
    # The first epoch is as long as one compiled function takes, the second is measured.
    model.fit(dataset(x, y), epochs=1, steps_per_epoch=2 * steps_per_execution, verbose=0)
    model.fit(dataset(x, y), epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return steps / (times[1] - times[0])


def callable_rate(x: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Return the steps/s of a bare loop around a Session callable: the floor that no loop can beat."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        iterator = v1.data.make_initializable_iterator(dataset(x, y).prefetch(2))
        loss, train_op = graph_model(*iterator.get_next())
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), step.initializer, iterator.initializer])
            train = session.make_callable([train_op, loss])
            for _ in range(100):
                train()
            started = time.perf_counter()
            for _ in range(steps):
                train()
            return steps / (time.perf_counter() - started)
