"""A model_fn of one's own with hooks, and a second model that is warm-started from the first."""

import argparse
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from appliance import estimator

v1 = tf.compat.v1


class LossRecorder(estimator.SessionRunHook):
    """Remembers the loss of every tenth step."""

    def __init__(self):
        self.losses = {}

    def begin(self):
        self._step = v1.train.get_global_step()
        self._loss = v1.get_default_graph().get_tensor_by_name("total_loss:0")

    def before_run(self, run_context):
        return estimator.SessionRunArgs([self._step, self._loss])

    def after_run(self, run_context, run_values):
        step, loss = run_values.results
        if step % 10 == 0:
            self.losses[int(step)] = float(loss)


def dense(x, units, name, activation=None):
    with v1.variable_scope(name):
        kernel = v1.get_variable(
            "kernel", [x.shape[-1], units], initializer=v1.glorot_uniform_initializer(seed=1)
        )
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    y = tf.matmul(x, kernel) + bias
    return activation(y) if activation else y


def model_fn(features, labels, mode, params):
    x = features["pixels"]
    for index, units in enumerate(params["hidden_units"]):
        x = dense(x, units, f"hidden_{index}", tf.nn.relu)
    logits = dense(x, params["n_classes"], params["top"])
    predictions = {"class_ids": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.identity(v1.losses.sparse_softmax_cross_entropy(labels, logits), name="total_loss")
    metrics = {"accuracy": v1.metrics.accuracy(labels, predictions["class_ids"])}
    if mode == estimator.ModeKeys.EVAL:
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    rate = v1.train.exponential_decay(params["learning_rate"], v1.train.get_global_step(), 100, 0.9)
    train_op = v1.train.AdamOptimizer(rate).minimize(loss, global_step=v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(x, y, repeat):
    dataset = tf.data.Dataset.from_tensor_slices(({"pixels": x}, y))
    return dataset.repeat().batch(64) if repeat else dataset.batch(64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    digits = load_digits()
    x, y = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)
    params = {"hidden_units": [64, 32], "n_classes": 10, "learning_rate": 0.01, "top": "digits"}
    recorder = LossRecorder()
    first = estimator.Estimator(
        model_fn, os.path.join(args.folder, "digits"), estimator.RunConfig(tf_random_seed=1), params
    )
    first.train(lambda: input_fn(x[:1500], y[:1500], True), steps=args.steps, hooks=[recorder])
    print("digits:", first.evaluate(lambda: input_fn(x[1500:], y[1500:], False)))
    print("losses:", {step: round(loss, 3) for step, loss in sorted(recorder.losses.items())})

    # Is the digit even? The hidden layers start from what the first model has learned.
    warm = estimator.WarmStartSettings(first.model_dir, vars_to_warm_start="hidden_.*")
    second = estimator.Estimator(
        model_fn,
        os.path.join(args.folder, "even"),
        estimator.RunConfig(tf_random_seed=1),
        dict(params, n_classes=2, top="even"),
        warm_start_from=warm,
    )
    stop = estimator.StopAtStepHook(last_step=args.steps // 3)
    second.train(lambda: input_fn(x[:1500], 1 - y[:1500] % 2, True), hooks=[stop])
    print("even:", second.evaluate(lambda: input_fn(x[1500:], 1 - y[1500:] % 2, False)))
    answers = second.predict(lambda: input_fn(x[1500:1505], y[1500:1505], False), predict_keys=["class_ids"])
    print("is", y[1500:1505].tolist(), "even?", [int(answer["class_ids"]) for answer in answers])


if __name__ == "__main__":
    main()
