"""The continuous evaluator: follows the checkpoints of a model_dir, evaluates and exports them."""

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf

from appliance.estimator import checkpoints
from appliance.estimator.evaluation_policy import (
    Action,
    AskExporters,
    Checkpoint,
    Evaluate,
    Stop,
    TrainingEnd,
    Wait,
    next_action,
)
from appliance.estimator.evaluation_record import (
    Evaluation,
    EvaluationRecord,
    load_record,
    save_record,
)
from appliance.estimator.exporters import Exporter
from appliance.estimator.json_state import plain_metrics
from appliance.estimator.specs import EvalSpec

log = logging.getLogger(__name__)


class TrainingSignals(Protocol):
    """What an evaluator can know of the training it follows."""

    def ended(self) -> TrainingEnd | None:
        """Return how training has ended, None while it goes on."""

    def wait(self, seconds: float) -> None:
        """Wait, at most this long; less if something becomes known."""


class NoSignals:
    """Nothing is known of the training but its checkpoints."""

    def __init__(self, check_interval_secs: float) -> None:
        """Wait `check_interval_secs` seconds between two looks."""
        self._check_interval_secs = check_interval_secs

    def ended(self) -> TrainingEnd | None:
        """Return None: nobody says."""
        return None

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(max(seconds, self._check_interval_secs))


class Evaluator:
    """Evaluates checkpoints of one Estimator, offers them to the exporters, and records what it did."""

    def __init__(
        self,
        estimator: Any,
        eval_spec: EvalSpec,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        """Take up the work where the record in `estimator.eval_dir(eval_spec.name)` says it was left.

        Args:
            estimator: anything with the methods of an Estimator.
            eval_spec: how to evaluate, and the exporters.
            on_event: told of each `evaluation` and `export`.
        """
        self._estimator = estimator
        self._spec = eval_spec
        self._on_event = on_event
        self._eval_dir = tf.compat.as_str_any(estimator.eval_dir(eval_spec.name))
        self._export_base = os.path.join(tf.compat.as_str_any(estimator.model_dir), "export")
        self._record = load_record(self._eval_dir, self._export_base).without_lost_exports()
        self._known: tuple[Any, Checkpoint] | None = None

    @property
    def record(self) -> EvaluationRecord:
        """The last evaluation and the exports."""
        return self._record

    @property
    def metrics(self) -> Mapping[str, Any] | None:
        """The metrics of the last evaluation, None before the first."""
        return None if self._record.last is None else self._record.last.metrics

    @property
    def last_exports(self) -> list[str | None]:
        """What each exporter made of the last evaluation: a path, or None; empty before the first."""
        if self._record.last is None:
            return []
        offers = self._record.last.offers
        return [offers[name].path if name in offers else None for name in self.exporter_names]

    @property
    def exporter_names(self) -> tuple[str, ...]:
        """The names of the exporters, in their order."""
        return tuple(exporter.name for exporter in self._spec.exporters)

    def newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; None where there is none, or where it is being replaced right now."""
        path = self._estimator.latest_checkpoint()
        if not path:
            return None
        try:
            stat = tf.io.gfile.stat(path + ".index")
            identity = (path, stat.mtime_nsec, stat.length)
            if self._known is None or self._known[0] != identity:
                self._known = (identity, _describe(path))
        except tf.errors.NotFoundError:
            return None
        return self._known[1]

    def evaluate(self, checkpoint: Checkpoint, final: bool) -> None:
        """Evaluate the checkpoint, then ask the exporters; do nothing if it has just been deleted."""
        with self._pinned(checkpoint) as prefix:
            if prefix is not None:
                evaluation = self._evaluate(prefix, checkpoint)
                self._ask_exporters(prefix, evaluation, final)

    def ask_exporters(self, checkpoint: Checkpoint, final: bool) -> None:
        """Ask the exporters that are due about the last evaluation; nothing if its checkpoint is gone."""
        with self._pinned(checkpoint) as prefix:
            if prefix is not None and self._record.last is not None:
                self._ask_exporters(prefix, self._record.last, final)

    @contextlib.contextmanager
    def _pinned(self, checkpoint: Checkpoint) -> Iterator[str | None]:
        """Keep the checkpoint from being deleted; yield None if a newer one has taken its place already.

        Raises:
            FileNotFoundError: a part of the newest checkpoint is missing.
        """
        with contextlib.ExitStack() as stack:
            try:
                prefix = stack.enter_context(checkpoints.pinned(checkpoint.path))
            except FileNotFoundError:
                if self._estimator.latest_checkpoint() == checkpoint.path:
                    raise
                log.info("checkpoint_skipped", extra={"step": checkpoint.step, "reason": "deleted meanwhile"})
                yield None
                return
            yield prefix

    def _evaluate(self, prefix: str, checkpoint: Checkpoint) -> Evaluation:
        metrics = self._estimator.evaluate(
            input_fn=self._spec.input_fn,
            steps=self._spec.steps,
            hooks=list(self._spec.hooks),
            checkpoint_path=prefix,
            name=self._spec.name,
        )
        evaluation = Evaluation(
            checkpoint=os.path.basename(checkpoint.path),
            step=int(metrics["global_step"]),
            fingerprint=checkpoint.fingerprint,
            metrics=plain_metrics(metrics),
            offers={},
        )
        self._save(self._record.evaluated(evaluation))
        self._on_event({"kind": "evaluation", "step": evaluation.step, "metrics": evaluation.metrics})
        return evaluation

    def _ask_exporters(self, prefix: str, evaluation: Evaluation, final: bool) -> None:
        due = evaluation.exports_due(self.exporter_names, final)
        for exporter in self._spec.exporters:
            if exporter.name in due:
                self._ask(exporter, prefix, evaluation, final)

    def _ask(self, exporter: Exporter, prefix: str, evaluation: Evaluation, final: bool) -> None:
        written = exporter.export(
            estimator=self._estimator,
            export_path=os.path.join(self._export_base, exporter.name),
            checkpoint_path=prefix,
            eval_result=evaluation.metrics,
            is_the_final_export=final,
        )
        path = tf.compat.as_str_any(written) if written else None
        self._save(self._record.answered(exporter.name, path, final).without_lost_exports())
        if path is not None:
            self._on_event(
                {
                    "kind": "export",
                    "name": exporter.name,
                    "path": path,
                    "step": evaluation.step,
                    "metrics": evaluation.metrics,
                }
            )

    def _save(self, record: EvaluationRecord) -> None:
        self._record = record
        save_record(record, self._eval_dir, self._export_base)


def advance(
    evaluator: Evaluator,
    ended: TrainingEnd | None,
    *,
    max_steps: int | None,
    min_steps_between: int = 1,
    seconds_until_due: float = 0,
) -> Action:
    """Do the next thing there is to do, and return it.

    Args:
        evaluator: does the work.
        ended: how training has ended, None while it goes on.
        max_steps: a checkpoint at this step is the last one even if training has not ended yet; None: no
            limit.
        min_steps_between: least number of steps between two evaluations; 0: only after training.
        seconds_until_due: time left until the next evaluation may start.
    """
    newest = evaluator.newest_checkpoint()
    if ended is None and max_steps is not None and newest is not None and newest.step >= max_steps:
        ended = TrainingEnd(final=True)
    action = next_action(
        newest,
        evaluator.record.last,
        ended,
        exporters=evaluator.exporter_names,
        min_steps_between=min_steps_between,
        seconds_until_due=seconds_until_due,
    )
    match action:
        case Evaluate(checkpoint, final):
            evaluator.evaluate(checkpoint, final)
        case AskExporters(checkpoint, final):
            evaluator.ask_exporters(checkpoint, final)
    return action


def catch_up(
    evaluator: Evaluator, ended: TrainingEnd | None, *, max_steps: int | None, min_steps_between: int = 1
) -> None:
    """Do all there is to do now. The arguments are those of `advance`."""
    action: Action = Wait(0)
    while not isinstance(action, Stop):
        action = advance(evaluator, ended, max_steps=max_steps, min_steps_between=min_steps_between)
        if isinstance(action, Wait):
            return


def follow(
    evaluator: Evaluator,
    signals: TrainingSignals,
    *,
    max_steps: int | None,
    start_delay_secs: float,
    throttle_secs: float,
    min_steps_between: int = 1,
    go_on: Callable[[Mapping[str, Any] | None], bool] = lambda metrics: True,
    on_dealt_with: Callable[[], None] = lambda: None,
) -> None:
    """Evaluate the checkpoints of a training until it has ended and its last one is dealt with.

    Args:
        evaluator: does the work.
        signals: tells how training stands.
        max_steps: the step at which training ends, known beforehand; None: no limit.
        start_delay_secs: wait before the first evaluation, in seconds.
        throttle_secs: least time between the starts of two evaluations, in seconds.
        min_steps_between: least number of steps between two evaluations; 0: only after training.
        go_on: asked now and again with the last metrics; if false, the evaluator ends at once.
        on_dealt_with: called when a checkpoint has been evaluated and all exporters have answered.
    """
    due = time.monotonic() + start_delay_secs
    while go_on(evaluator.metrics):
        now = time.monotonic()
        action = advance(
            evaluator,
            signals.ended(),
            max_steps=max_steps,
            min_steps_between=min_steps_between,
            seconds_until_due=due - now,
        )
        match action:
            case Stop():
                return
            case Wait(seconds):
                signals.wait(seconds)
            case Evaluate():
                due = now + throttle_secs
                on_dealt_with()
            case AskExporters():
                on_dealt_with()


def _describe(path: str) -> Checkpoint:
    """Return the checkpoint at this prefix."""
    # The index holds a checksum of each tensor, so two indexes are equal where the contents are.
    with tf.io.gfile.GFile(path + ".index", "rb") as index:
        fingerprint = hashlib.sha256(index.read()).hexdigest()
    return Checkpoint(path, _step_of(path), fingerprint)


def _step_of(path: str) -> int:
    """Return the global step: from the name if it is there, so that training may delete the file now."""
    match = re.search(r"-(\d+)$", path)
    return int(match.group(1)) if match else checkpoints.global_step(path)
