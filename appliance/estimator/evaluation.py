"""The graph of an evaluation, and running it, once or again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.checks import no_data
from appliance.estimator.input_graph import Inputs
from appliance.estimator.loop import run_until_stopped
from appliance.estimator.model_fn import LOSS_METRIC_KEY
from appliance.estimator.sessions import hooked_session


def metrics_of(spec: Any) -> dict[str, tuple[Any, Any]]:
    """Return the (value, update) pairs of an EstimatorSpec of the mode EVAL, with the mean of its loss."""
    return {**spec.eval_metric_ops, LOSS_METRIC_KEY: tf.compat.v1.metrics.mean(spec.loss)}


class Evaluation:
    """The metrics of a model over its data, built in the default graph.

    Args:
        spec: the EstimatorSpec of the mode EVAL.
        metrics: (value, update) pairs by name, as `metrics_of` returns them.
        inputs: the data that they were built from.
        hooks: SessionRunHooks, called at every step.
    """

    def __init__(
        self, spec: Any, metrics: Mapping[str, tuple[Any, Any]], inputs: Inputs, hooks: Sequence[Any]
    ) -> None:
        values = {name: value for name, (value, _) in metrics.items()}
        values[tf.compat.v1.GraphKeys.GLOBAL_STEP] = tf.compat.v1.train.get_global_step()
        self._update = tf.group(*(metrics[name][1] for name in sorted(metrics)))
        self._final = tf.compat.v1.train.FinalOpsHook(values)
        self._hooks = [*hooks, *spec.evaluation_hooks]
        self._data_hooks = inputs.hooks()

    def run(self, session_creator: Any, steps: int | None) -> dict[str, Any]:
        """Evaluate `steps` batches, or all, in a new session.

        Returns:
            metrics by name as numpy scalars or arrays, with `loss` (the mean over batches) and `global_step`.

        Raises:
            ValueError: there is no data, or the checkpoint is of another model.
        """
        hooks = [*self._data_hooks, *self._hooks, self._final]
        with hooked_session(session_creator, hooks) as (session, coordinator):
            done = run_until_stopped(session, coordinator, self._update, self._hooks, limit=steps)
            stopped = coordinator.should_stop()
        if not done and not stopped:
            raise no_data("evaluate")
        return dict(self._final.final_ops_values)
