"""Trains and evaluates Keras models on two virtual CPUs and on one, and prints the numbers of both.

`python -m tests.appliance.mirrored_keras FOLDER`: virtual devices must be there before TensorFlow starts.
"""

import keras
import numpy as np
import tensorflow as tf

from appliance import estimator
from tests.appliance.two_devices import print_both, values

STEPS = 6


def input_fn(batch):
    random = np.random.RandomState(3)
    x = random.normal(size=(96, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, {"p": y, "q": np.abs(y)})).batch(batch)


def functional():
    """Outputs with a mean and with a sum for a loss, a regularizer, a schedule."""
    x = keras.Input([3])
    hidden = keras.layers.Dense(4, "tanh", kernel_regularizer="l2")(x)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("p", "q")}
    model = keras.Model(x, outputs)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        {"p": keras.losses.MeanSquaredError(reduction="sum"), "q": "mae"},
        loss_weights={"p": 0.05, "q": 1.0},
        metrics={"p": ["mse"], "q": [keras.metrics.RootMeanSquaredError(name="rmse")]},
    )
    return model


class Subclassed(keras.Model):
    """Adds a loss in its call, and has weights only once it is called."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(3, "tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        hidden = self.hidden(x)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(hidden)))
        output = self.out(hidden)
        return {"p": output, "q": output}


def subclassed():
    model = Subclassed()
    model.compile(keras.optimizers.Adam(0.05), {"p": "mse", "q": "mse"})
    return model


def by_mode():
    """Layers that behave by mode: each replica has its own averages, and draws what it drops."""
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.3)]
    x = hidden = keras.Input([3])
    for layer in layers:
        hidden = layer(hidden)
    model = keras.Model(x, {name: keras.layers.Dense(1, name=name)(hidden) for name in ("p", "q")})
    model.compile("sgd", "mse")
    return model


class Losses(estimator.SessionRunHook):
    """Fetches the loss of each step."""

    def __init__(self):
        self.values = []

    def begin(self):
        [self._loss] = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)

    def before_run(self, run_context):
        return estimator.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.values.append(float(run_values.results))


def run(make, model_dir, strategy, batch):
    """Train and evaluate with a strategy: two replicas take the batches that one takes at once."""
    keras.utils.set_random_seed(1)
    config = estimator.RunConfig(tf_random_seed=1, train_distribute=strategy, eval_distribute=strategy)
    model = estimator.model_to_estimator(make(), model_dir=model_dir, config=config)
    losses = Losses()
    model.train(lambda: input_fn(batch), steps=STEPS, hooks=[losses])
    trained = values(model)
    metrics = model.evaluate(lambda: input_fn(20))
    prediction = next(model.predict(lambda: input_fn(1)))
    return {
        "values": trained,
        "losses": losses.values,
        "metrics": {key: float(value) for key, value in metrics.items()},
        "prediction": {key: value.tolist() for key, value in prediction.items()},
    }


if __name__ == "__main__":
    print_both(run, (functional, subclassed, by_mode))
