"""Trains on two virtual CPUs and on one, with the doubled batch, and prints the numbers of both.

`python -m tests.appliance.mirrored_training FOLDER`: virtual devices must be there before TensorFlow starts.
"""

import numpy as np
import tensorflow as tf

from appliance import estimator
from tests.appliance.models import linear_model_fn
from tests.appliance.two_devices import print_both, values

STEPS = 6


def columns():
    random = np.random.RandomState(3)
    x = random.normal(size=(96, 1)).astype(np.float32)
    y = (2 * x[:, 0] + random.normal(0, 0.1, 96)).astype(np.float32)
    words = np.array(["ant", "bee", "cat"])[random.randint(3, size=96)]
    return {"x": x, "word": words}, y[:, None]


def input_fn(batch):
    return tf.data.Dataset.from_tensor_slices(columns()).batch(batch)


def canned(config):
    word = tf.feature_column.categorical_column_with_vocabulary_list("word", ["ant", "bee", "cat"])
    x = tf.feature_column.numeric_column("x")
    return estimator.DNNLinearCombinedRegressor(
        linear_feature_columns=[word],
        dnn_feature_columns=[x, tf.feature_column.embedding_column(word, 2, initializer=fixed)],
        dnn_hidden_units=[3],
        dnn_activation_fn=tf.nn.tanh,
        dnn_optimizer=tf.keras.optimizers.Adagrad(0.1),
        config=config,
    )


def fixed(shape, dtype=tf.float32, partition_info=None):
    return tf.reshape(tf.linspace(tf.constant(-1.0, dtype), 1.0, shape[0] * shape[1]), shape)


def custom(config):
    return estimator.Estimator(linear_model_fn, config=config, params={"learning_rate": 0.1})


def keras_optimizer(config):
    def model_fn(features, labels, mode):
        weight = tf.compat.v1.get_variable("weight", [1, 1], initializer=tf.compat.v1.zeros_initializer())
        outputs = tf.matmul(features["x"], weight)
        head = estimator.RegressionHead()
        return head.create_estimator_spec(
            features, mode, outputs, labels, optimizer="Adam", trainable_variables=[weight]
        )

    return estimator.Estimator(model_fn, config=config)


def keras_layers(config):
    def model_fn(features, labels, mode):
        hidden, output = tf.keras.layers.Dense(2, activation="tanh"), tf.keras.layers.Dense(1)
        # What it puts out is not used: each replica has the mean of its own batch. Its averages are.
        tf.keras.layers.BatchNormalization()(features["x"], training=mode == estimator.ModeKeys.TRAIN)
        loss = tf.keras.losses.MeanSquaredError()(labels, output(hidden(features["x"])))
        train_op = tf.compat.v1.train.AdamOptimizer(0.1).minimize(
            loss,
            tf.compat.v1.train.get_global_step(),
            var_list=[v.value for v in (*hidden.trainable_variables, *output.trainable_variables)],
        )
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return estimator.Estimator(model_fn, config=config)


class FixedWeights(estimator.SessionRunHook):
    """Sets the network's kernels, which are random otherwise."""

    def begin(self):
        self._assign = [
            variable.assign(fixed(variable.shape)).op
            for variable in tf.compat.v1.trainable_variables()
            if variable.op.name.endswith("kernel")
        ]

    def after_create_session(self, session, coord):
        session.run(self._assign)


def run(make, model_dir, strategy, batch):
    config = estimator.RunConfig(
        model_dir=model_dir, tf_random_seed=1, train_distribute=strategy, save_summary_steps=1
    )
    model = make(config)
    model.train(lambda: input_fn(batch), steps=STEPS, hooks=[FixedWeights()])
    trained = values(model)
    metrics = model.evaluate(lambda: input_fn(32))
    return {"values": trained, "metrics": {key: float(value) for key, value in metrics.items()}}


if __name__ == "__main__":
    print_both(run, (canned, custom, keras_optimizer, keras_layers))
