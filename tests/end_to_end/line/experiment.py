"""The smallest experiment that is worth serving: a line through the origin, its slope a parameter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from appliance import estimator

HOLD_SECONDS = 240.0


def experiment(run_config: estimator.RunConfig, params: dict[str, Any]) -> estimator.Experiment:
    """Return the experiment of fitting `y = slope * x`.

    Args:
        run_config: where to train.
        params: `slope` and `steps`; optionally `fail` (raise with this text), and `hold_at` with `hold_file`
            (from this step on, wait until the file exists).
    """
    if "fail" in params:
        raise ValueError(params["fail"])
    hold = Hold(params["hold_at"], Path(params["hold_file"])) if "hold_at" in params else None
    return estimator.Experiment(
        estimator.Estimator(model_fn, config=run_config),
        train_input_fn=lambda: points(params["slope"]).repeat(),
        eval_input_fn=lambda: points(params["slope"]),
        train_steps=params["steps"],
        eval_steps=None,
        eval_delay_secs=0,
        continuous_eval_throttle_secs=0,
        train_monitors=[hold] if hold else [],
        export_strategies=[estimator.make_export_strategy(serving_inputs, exports_to_keep=2)],
    )


def points(slope: float) -> tf.data.Dataset:
    """Return one batch of points on the line."""
    x = tf.constant([[-1.0], [-0.5], [0.5], [1.0]])
    return tf.data.Dataset.from_tensors(({"x": x}, slope * x))


def model_fn(features: Any, labels: Any, mode: str) -> estimator.EstimatorSpec:
    """Return the model: one weight, fitted by gradient descent."""
    weight = tf.compat.v1.get_variable("weight", [1, 1], initializer=tf.compat.v1.zeros_initializer())
    y = tf.matmul(features["x"], weight)
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions={"y": y})
    loss = tf.reduce_mean(tf.square(y - labels))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
    step = tf.compat.v1.train.get_or_create_global_step()
    return estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))


def serving_inputs() -> Any:
    """Return what the served model takes: `x`, float32 `[batch, 1]`."""
    x = tf.compat.v1.placeholder(tf.float32, [None, 1], name="x")
    return estimator.export.ServingInputReceiver({"x": x}, {"x": x})


class Hold(estimator.SessionRunHook):
    """Says where training begins, and from a step on waits until a file exists."""

    def __init__(self, at: int, file: Path) -> None:
        """Take the step and the file."""
        self._at, self._file = at, file

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Print the first step."""
        print(f"training begins at step {session.run(tf.compat.v1.train.get_global_step())}", flush=True)

    def before_run(self, run_context: Any) -> Any:
        """Ask for the step."""
        return estimator.SessionRunArgs(tf.compat.v1.train.get_global_step())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Wait. Raises TimeoutError when the file does not come."""
        deadline = time.monotonic() + HOLD_SECONDS
        while run_values.results >= self._at and not self._file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._file} did not come within {HOLD_SECONDS:g} s.")
            time.sleep(0.05)  # A file wakes nobody who waits for it.
