"""Evaluates on one, two and three virtual CPUs and prints the numbers: by program, by devices.

`python -m tests.appliance.mirrored_evaluation FOLDER`: virtual devices must be there before TensorFlow is.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from appliance import estimator

COUNTS = (16, 41)
"""Examples, 8 a batch: two thirds of a round of three replicas; two rounds, the last batch of one example."""


def data(count):
    def input_fn():
        random = np.random.RandomState(1)
        x = random.normal(size=(96, 2)).astype(np.float32)[:count]
        return tf.data.Dataset.from_tensor_slices(({"x": x}, (x[:, :1] > 0.3).astype(np.int64))).batch(8)

    return input_fn


def every_kind_of_metric(features, labels, mode):
    """Metrics of Keras and of TensorFlow, one of the caller's own that depends on the order, and none that
    depends on the data."""
    layer = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.3))
    logits = layer(features["x"])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)(labels, logits)
    area, mean = keras.metrics.AUC(), keras.metrics.Mean()
    area.update_state(labels, tf.sigmoid(logits))
    mean.update_state(logits)
    decayed = tf.compat.v1.get_local_variable("decayed", [], initializer=tf.zeros_initializer())
    metrics = {
        "keras_auc": area,
        "keras_mean": mean,
        "mean": tf.compat.v1.metrics.mean(logits),
        "mean_iou": tf.compat.v1.metrics.mean_iou(labels, tf.cast(logits > 0, tf.int64), 2),
        "constant": tf.compat.v1.metrics.mean(tf.constant(2.0)),
        "decayed": (decayed.read_value(), decayed.assign(decayed / 2 + tf.reduce_mean(logits))),
    }
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    variables = [variable.value for variable in layer.trainable_variables]
    step = tf.compat.v1.train.get_global_step()
    train_op = optimizer.minimize(loss, step, var_list=variables)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def custom(config):
    return estimator.Estimator(every_kind_of_metric, config=config)


def canned(config):
    x = tf.feature_column.numeric_column("x", shape=2)
    return estimator.DNNClassifier([3], [x], config=config)


def plain(results):
    return {name: float(value) for name, value in results.items()}


def config(model_dir, **distribute):
    return estimator.RunConfig(model_dir=model_dir, tf_random_seed=1, **distribute)


def evaluations(make, model_dir, strategies):
    """Return the metrics of one checkpoint by number of devices, for each number of examples."""
    make(config(model_dir)).train(data(96), steps=2)
    return {
        devices: [
            plain(make(config(model_dir, eval_distribute=strategy)).evaluate(data(count))) for count in COUNTS
        ]
        for devices, strategy in strategies.items()
    }


def some_steps(model_dir, strategies):
    """Return the metrics of as many batches: a step of n replicas takes n."""
    return {
        devices: plain(
            custom(config(model_dir, eval_distribute=strategy)).evaluate(data(96), steps=6 // int(devices))
        )
        for devices, strategy in strategies.items()
    }


def in_between(folder, strategies):
    """Return the metrics of evaluations in the middle of a training, by a hook and of the last checkpoint."""
    results = {}
    for devices, strategy in strategies.items():
        model = custom(
            config(f"{folder}/{devices}", train_distribute=strategies["2"], eval_distribute=strategy)
        )
        training = estimator.TrainSpec(data(96), max_steps=3)
        metrics, _ = estimator.train_and_evaluate(model, training, estimator.EvalSpec(data(41), steps=None))
        results[devices] = plain(metrics)
    return results


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    strategies = {
        "1": None,
        "2": tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]),
        "3": tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1", "/cpu:2"]),
    }
    folder = sys.argv[1]
    results = {
        "canned": evaluations(canned, f"{folder}/canned", strategies),
        "custom": evaluations(custom, f"{folder}/custom", strategies),
        "steps": some_steps(f"{folder}/custom", strategies),
        "in_between": in_between(f"{folder}/in_between", strategies),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
