"""What an evaluator does next: a decision on plain values."""

from dataclasses import dataclass

from appliance.estimator.evaluation_record import Evaluation

POLL_SECONDS = 0.2
"""How often to look for a new checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: its prefix, its global step, and a digest of its content."""

    path: str
    step: int
    fingerprint: str


@dataclass(frozen=True)
class TrainingEnd:
    """Training has ended; `final` unless it failed, so that its last checkpoint is the finished model."""

    final: bool


@dataclass(frozen=True)
class Evaluate:
    """Evaluate this checkpoint, then ask the exporters."""

    checkpoint: Checkpoint
    final: bool


@dataclass(frozen=True)
class AskExporters:
    """Ask the exporters that have not answered yet about the checkpoint that was evaluated last."""

    checkpoint: Checkpoint
    final: bool


@dataclass(frozen=True)
class Wait:
    """Look again after this many seconds, or as soon as something is known of the training."""

    seconds: float


@dataclass(frozen=True)
class Stop:
    """Training has ended and its last checkpoint is dealt with."""


Action = Evaluate | AskExporters | Wait | Stop


def next_action(
    newest: Checkpoint | None,
    last: Evaluation | None,
    ended: TrainingEnd | None,
    *,
    exporters: tuple[str, ...],
    min_steps_between: int,
    seconds_until_due: float,
) -> Action:
    """Decide what the evaluator does next. Only the newest checkpoint counts: older ones are skipped.

    Args:
        newest: the newest checkpoint, looked up after `ended`, so that none can be missed.
        last: the last evaluation in this model_dir, by whichever process.
        ended: how training has ended, None while it goes on.
        exporters: the names of the exporters.
        min_steps_between: least number of steps between two evaluations; 0: only after training.
        seconds_until_due: time left until the next evaluation may start; the last one does not wait.
    """
    final = ended is not None and ended.final
    if newest is None:
        return Stop() if ended else Wait(POLL_SECONDS)
    if last is not None and last.fingerprint == newest.fingerprint:
        if last.exports_due(exporters, final):
            return AskExporters(newest, final)
        return Stop() if ended else Wait(POLL_SECONDS)
    if ended:
        return Evaluate(newest, final)
    if not _far_enough(newest, last, min_steps_between):
        return Wait(POLL_SECONDS)
    if seconds_until_due > 0:
        return Wait(seconds_until_due)
    return Evaluate(newest, final)


def _far_enough(newest: Checkpoint, last: Evaluation | None, min_steps_between: int) -> bool:
    """Return whether the checkpoint is worth an evaluation while training goes on."""
    if newest.step == 0 or min_steps_between == 0:  # An untrained model is of no interest.
        return False
    # After a return to an earlier checkpoint, steps count from there.
    since = newest.step - last.step if last is not None and last.step < newest.step else newest.step
    return since >= min_steps_between
