"""train_and_evaluate: train one Estimator and evaluate its checkpoints, in one process or as one task."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.cluster import TaskType
from appliance.estimator.cluster_tasks import (
    AnnouncedEnd,
    announced_end,
    start_server,
    worker_delay_seconds,
)
from appliance.estimator.estimator import Estimator
from appliance.estimator.evaluator import Evaluator, follow
from appliance.estimator.specs import EvalSpec, TrainSpec

log = logging.getLogger(__name__)

__all__ = ["EvalSpec", "TrainSpec", "train_and_evaluate"]

Result = tuple[Mapping[str, Any] | None, list[bytes | str | None] | None]


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    """Train the Estimator and evaluate its checkpoints (`tf.estimator.train_and_evaluate`).

    Training and evaluation take turns in this process: an evaluation after each checkpoint but the one that
    training starts from, unless the last began less than `eval_spec.throttle_secs` seconds ago; and one at
    the end. Exporters run after each evaluation; `is_the_final_export` is true once `train_spec.max_steps` is
    reached, so never where that is None.

    Where TF_CONFIG makes this process a task of a cluster, it does that task: `chief` and `worker` train,
    each at its own pace, on the variables that the `ps` tasks hold, or in step, each with variables of its
    own, when `RunConfig.train_distribute` is a MultiWorkerMirroredStrategy; a `ps` serves until its process
    is ended;
    the `evaluator` follows the checkpoints until one reaches `train_spec.max_steps`, or the chief has ended,
    however it ended. A `master` (the old name) trains as the chief and evaluates in between.

    Returns:
        The metrics of the last evaluation, and what its exporters returned; (None, None) where this process
        does not evaluate.

    Raises:
        TypeError: an argument is of another type.
        ValueError: TF_CONFIG names a task that cannot run here.
    """
    for value, kind, name in (
        (estimator, Estimator, "estimator"),
        (train_spec, TrainSpec, "train_spec"),
        (eval_spec, EvalSpec, "eval_spec"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}. Received: {type(value)}.")
    config = estimator.config
    if config.task_type == TaskType.EVALUATOR:
        return _run_evaluator(estimator, train_spec, eval_spec)
    if not config.cluster_spec:
        return _run_local(estimator, train_spec, eval_spec)
    server = start_server(config)
    if config.task_type == TaskType.PS:
        server.join()
    elif config.task_type == TaskType.MASTER:
        return _run_local(estimator, train_spec, eval_spec)
    elif config.is_chief:
        with announced_end(estimator.model_dir):
            _train(estimator, train_spec, train_spec.saving_listeners)
    else:
        time.sleep(worker_delay_seconds(config))
        _train(estimator, train_spec, ())
    return None, None


def _train(estimator: Estimator, train_spec: TrainSpec, listeners: Sequence[Any]) -> None:
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=list(listeners),
    )


def _run_local(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    listener = _EvaluateCheckpoints(estimator, eval_spec, train_spec.max_steps)
    _train(estimator, train_spec, [*train_spec.saving_listeners, listener])
    return listener.metrics, listener.exports


class _EvaluateCheckpoints(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates and exports each new checkpoint in the middle of training."""

    def __init__(self, estimator: Estimator, eval_spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = eval_spec
        self._max_steps = max_steps
        self._evaluated: str | None = None
        self.metrics: Mapping[str, Any] | None = None
        self.exports: list[bytes | str | None] | None = None

    def begin(self) -> None:
        self._timer = tf.compat.v1.train.SecondOrStepTimer(every_secs=self._spec.throttle_secs)
        self._is_first_save = True

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._is_first_save:  # Training starts from it: it has learned nothing new.
            self._is_first_save = False
        elif self._timer.should_trigger_for_step(global_step_value):
            self._evaluate(global_step_value)

    def end(self, session: Any, global_step_value: int) -> None:
        if global_step_value != self._timer.last_triggered_step():
            self._evaluate(global_step_value)

    def _evaluate(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        checkpoint = self._estimator.latest_checkpoint()
        if checkpoint is None or checkpoint == self._evaluated:
            log.info("evaluation_skipped", extra={"step": step, "reason": "no new checkpoint"})
            return
        self.metrics = self._estimator.evaluate(
            input_fn=self._spec.input_fn,
            steps=self._spec.steps,
            name=self._spec.name,
            checkpoint_path=checkpoint,
            hooks=list(self._spec.hooks),
        )
        self._evaluated = checkpoint
        final = self._max_steps is not None and self.metrics["global_step"] >= self._max_steps
        self.exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=checkpoint,
                eval_result=self.metrics,
                is_the_final_export=final,
            )
            for exporter in self._spec.exporters
        ]


def _run_evaluator(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    if estimator.config.task_id > 0:
        raise ValueError(
            f"A cluster has one evaluator, with index 0. Received: index {estimator.config.task_id}; "
            "correct the task in TF_CONFIG."
        )
    evaluator = Evaluator(estimator, eval_spec)
    follow(
        evaluator,
        AnnouncedEnd(estimator.model_dir, check_interval_secs=1),
        max_steps=train_spec.max_steps,
        start_delay_secs=eval_spec.start_delay_secs,
        throttle_secs=eval_spec.throttle_secs,
    )
    last = evaluator.record.last
    return (last.metrics, [offer.path for offer in last.offers.values()]) if last else (None, None)
