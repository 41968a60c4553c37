"""Train an experiment in this process while a second one evaluates and exports its checkpoints."""

import contextlib
import logging
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from appliance.estimator import checkpoints
from appliance.estimator.evaluation_policy import TrainingEnd
from appliance.estimator.evaluation_record import Export, load_record
from appliance.estimator.evaluator_main import ExperimentEvaluation
from appliance.estimator.evaluator_process import EvaluatorFailed, EvaluatorProcess
from appliance.estimator.experiment import Experiment
from appliance.estimator.loop import LossFollower
from appliance.estimator.run_config import RunConfig

log = logging.getLogger(__name__)

__all__ = ["EvaluatorFailed", "ExperimentResult", "Export", "log_event", "run"]

ExperimentFn = Callable[[RunConfig, Any], Experiment]
OnEvent = Callable[[dict[str, Any]], None]

PROGRESS_SECONDS = 0.5
"""Least time between two `train` events."""


@dataclass(frozen=True)
class ExperimentResult:
    """How an experiment ended."""

    step: int
    """The global step that training reached."""
    stopped: bool
    """Whether training ended because `should_stop` said so."""
    evaluation: Mapping[str, Any] | None
    """The metrics of the last checkpoint; None where training left none."""
    exports: tuple[Export, ...]
    """The exports in the model_dir, those of earlier runs too, oldest first."""


def log_event(event: dict[str, Any]) -> None:
    """Log an event of the experiment."""
    log.info(event["kind"], extra={key: value for key, value in event.items() if key not in ("kind", "name")})


def never() -> bool:
    """Return False: do not stop."""
    return False


def run(
    experiment_fn: ExperimentFn,
    run_config: RunConfig,
    params: Any,
    *,
    on_event: OnEvent = log_event,
    should_stop: Callable[[], bool] = never,
) -> ExperimentResult:
    """Train the experiment, and evaluate and export its checkpoints beside it.

    Training runs in the calling process. A spawned process builds the experiment again, evaluates the newest
    checkpoint whenever it has time for it, lets the export strategies export, and always deals with the last
    one. It ends when training has ended, however it ended. It is started again if it dies; what it has
    evaluated and the best result so far are kept in the model_dir. Run again on the same model_dir, an
    experiment goes on where it was.

    To run the function `experiment` of a file `flights.py` in this folder from a shell and see what happens::

        python -c "
        from appliance.estimator import RunConfig, continuous
        import flights
        print(continuous.run(flights.experiment, RunConfig(model_dir='/tmp/flights'), {}, on_event=print))"

    In a script, call it under `if __name__ == "__main__":`, because the second process imports the script
    too.

    Args:
        experiment_fn: `experiment_fn(run_config, params)` returns the Experiment; its Estimator takes this
            run_config. Picklable, so a function of a module; it is called in both processes.
        run_config: with the model_dir; without one a temporary folder is made.
        params: anything picklable that `experiment_fn` understands.
        on_event: called in this process, for one event at a time, with
            `{"kind": "train", "step", "max_steps", "loss", "steps_per_second"}` (twice a second at most),
            `{"kind": "checkpoint", "step", "path"}`, `{"kind": "evaluation", "step", "metrics"}`, or
            `{"kind": "export", "name", "path", "step", "metrics"}`. If it raises, the experiment fails.
        should_stop: asked after every step; if true, a checkpoint is written and training ends.

    Returns:
        How it ended, after the last checkpoint has been evaluated and exported.

    Raises:
        ValueError: the run_config is that of a cluster.
        TypeError: `experiment_fn` or `params` cannot be pickled, or it returned no Experiment.
        EvaluatorFailed: evaluation failed several times in a row; training was stopped, at a checkpoint.
        Exception: whatever training raised, after the last checkpoint has been evaluated.
    """
    if run_config.cluster_spec:
        raise ValueError("An experiment runs on one machine here, but TF_CONFIG names a cluster. Unset it.")
    if run_config.model_dir is None:
        run_config = run_config.replace(model_dir=tempfile.mkdtemp())
    # Both processes use the same accelerator: neither may take all of its memory at the start.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    pickled = _pickle(experiment_fn, run_config, params)
    experiment = experiment_fn(run_config, params)
    if not isinstance(experiment, Experiment):
        raise TypeError(f"{experiment_fn} must return an Experiment. Received: {experiment!r}.")

    one_at_a_time = threading.Lock()

    def tell(event: dict[str, Any]) -> None:
        with one_at_a_time:
            on_event(event)

    evaluation_lost = threading.Event()
    evaluator = EvaluatorProcess(
        ExperimentEvaluation(pickled, experiment.estimator.model_dir),
        on_event=tell,
        on_failure=evaluation_lost.set,
    )
    progress = _Progress(experiment.train_spec.max_steps, tell, should_stop, evaluation_lost.is_set)
    with _running(evaluator):
        _train(experiment, progress, tell)
    return _result(experiment, progress.stopped)


@contextlib.contextmanager
def _running(evaluator: EvaluatorProcess) -> Iterator[None]:
    """Run the evaluator until the body has ended and the last checkpoint is dealt with."""
    evaluator.start()
    try:
        try:
            yield
        except BaseException as error:
            evaluator.training_ended(TrainingEnd(final=False))
            if failure := evaluator.join():
                error.add_note(f"Besides: {failure}")
            raise
        evaluator.training_ended(TrainingEnd(final=True))
        if failure := evaluator.join():
            raise failure
    finally:
        evaluator.kill()  # Nothing is left to kill, unless a second interrupt broke the wait.


def _train(experiment: Experiment, progress: "_Progress", tell: OnEvent) -> None:
    spec = experiment.train_spec
    experiment.estimator.train(
        input_fn=spec.input_fn,
        hooks=[*spec.hooks, progress],
        max_steps=spec.max_steps,
        saving_listeners=[*spec.saving_listeners, _TellCheckpoints(experiment.estimator, tell)],
    )


class _Progress(LossFollower):
    """Tells how training goes, now and then, and ends it when asked to."""

    def __init__(
        self,
        max_steps: int | None,
        tell: OnEvent,
        should_stop: Callable[[], bool],
        evaluation_lost: Callable[[], bool],
    ) -> None:
        self._max_steps = max_steps
        self._tell = tell
        self._should_stop = should_stop
        self._evaluation_lost = evaluation_lost
        self.stopped = False

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._told_step, self._told_at = int(session.run(self._global_step)), time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if time.monotonic() >= self._told_at + PROGRESS_SECONDS:
            self._tell_progress(run_context.session)
        if self._should_stop():
            self.stopped = True
            run_context.request_stop()
        elif self._evaluation_lost():
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self._tell_progress(session)

    def _tell_progress(self, session: Any) -> None:
        step, now = int(session.run(self._global_step)), time.monotonic()
        if step == self._told_step:
            return
        speed = (step - self._told_step) / (now - self._told_at)
        self._tell(
            {
                "kind": "train",
                "step": step,
                "max_steps": self._max_steps,
                "loss": self.last_loss,
                "steps_per_second": speed,
            }
        )
        self._told_step, self._told_at = step, now


class _TellCheckpoints(tf.compat.v1.train.CheckpointSaverListener):
    """Tells of each checkpoint."""

    def __init__(self, estimator: Any, tell: OnEvent) -> None:
        self._estimator = estimator
        self._tell = tell

    def after_save(self, session: Any, global_step_value: int) -> None:
        path = self._estimator.latest_checkpoint()
        self._tell({"kind": "checkpoint", "step": int(global_step_value), "path": path})


def _pickle(experiment_fn: ExperimentFn, run_config: RunConfig, params: Any) -> bytes:
    try:
        return pickle.dumps((experiment_fn, run_config, params))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"Cannot send the experiment to the evaluator's process: {error}. experiment_fn must be a "
            f"function of a module, and params plain values. Received: {experiment_fn!r}, {params!r}."
        ) from error


def _result(experiment: Experiment, stopped: bool) -> ExperimentResult:
    estimator = experiment.estimator
    export_base = os.path.join(estimator.model_dir, "export")
    record = load_record(estimator.eval_dir(experiment.eval_spec.name), export_base).without_lost_exports()
    return ExperimentResult(
        step=checkpoints.global_step(estimator.latest_checkpoint()),
        stopped=stopped,
        evaluation=record.last.metrics if record.last else None,
        exports=record.exports,
    )
