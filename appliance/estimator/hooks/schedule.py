"""When TensorFlow's own hooks next need a step, so that they cost nothing on the others.

A saver, counter or logger asks for the global step at every step only to find out that it has nothing to do
yet. The step loop knows the step already, so it asks these schedules once, after each time the hook acted,
when it will act next.
Only hooks of exactly these classes are scheduled: a subclass may do anything, so it is called at every step.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from appliance.estimator.hooks.in_memory import InMemoryEvaluatorHook
from appliance.estimator.hooks.own import CheckpointSaver, StepRate, TrainingLog
from appliance.estimator.hooks.stopping import StopWhen

_train = tf.compat.v1.train


@dataclass(frozen=True)
class Due:
    """The first step, or the time in seconds since the epoch, at which a hook must see a run."""

    step: float = math.inf
    time: float = math.inf


NOW = Due(step=-math.inf)


def _timer_due(timer: Any) -> Due:
    """Return when a SecondOrStepTimer triggers next, in the count of steps that it was given."""
    last = timer.last_triggered_step()
    if isinstance(timer, _train.SecondOrStepTimer):
        if last is None:
            return NOW
        if timer._every_secs is not None:
            return Due(time=timer._last_triggered_time + timer._every_secs)
        return Due(step=last + timer._every_steps)
    # The other timers of TensorFlow never trigger, or decide for themselves.
    return Due() if type(timer).__name__ == "NeverTriggerTimer" else NOW


class Schedule(abc.ABC):
    """When one hook acts next.

    `before` says whether it must be asked before the run, because it fetches, or only be told after it.
    """

    def __init__(self, hook: Any, before: bool) -> None:
        self.hook = hook
        self.before = before

    @abc.abstractmethod
    def due(self) -> Due:
        """Return when the hook acts next: the global step after the run, or before it if it fetches."""

    def prepare(self, step: int, local_step: int) -> None:  # noqa: B027  Most hooks count rightly themselves.
        """Bring the hook's own count up to the run that comes: `step` is the global step before it."""


class _ByTimer(Schedule):
    """Savers, counters and evaluators: they act after the run that reaches their step."""

    def __init__(self, hook: Any) -> None:
        super().__init__(hook, before=False)

    def due(self) -> Due:
        return _timer_due(self.hook._timer)


class _AtLastStep(Schedule):
    """StopAtStepHook: it acts after the run that reaches the last step."""

    def __init__(self, hook: Any) -> None:
        super().__init__(hook, before=False)

    def due(self) -> Due:
        return Due(step=self.hook._last_step)


class _Summaries(Schedule):
    """SummarySaverHook and ProfilerHook: they count the global step that the run will reach."""

    def __init__(self, hook: Any) -> None:
        super().__init__(hook, before=True)

    def due(self) -> Due:
        if self.hook._next_step is None:
            return NOW
        due = _timer_due(self.hook._timer)
        return Due(step=due.step - 1, time=due.time)

    def prepare(self, step: int, local_step: int) -> None:
        if self.hook._next_step is not None:
            self.hook._next_step = step + 1


class _Logging(Schedule):
    """LoggingTensorHook: it counts the runs of this session, from 0."""

    def __init__(self, hook: Any) -> None:
        super().__init__(hook, before=True)
        self._offset = 0

    def due(self) -> Due:
        due = _timer_due(self.hook._timer)
        return Due(step=due.step + self._offset, time=due.time)

    def prepare(self, step: int, local_step: int) -> None:
        self._offset = step - local_step
        self.hook._iter_count = local_step


_SCHEDULES: dict[type, type[Any]] = {
    _train.CheckpointSaverHook: _ByTimer,
    _train.StepCounterHook: _ByTimer,
    _train.StopAtStepHook: _AtLastStep,
    _train.SummarySaverHook: _Summaries,
    _train.ProfilerHook: _Summaries,
    _train.LoggingTensorHook: _Logging,
    CheckpointSaver: _ByTimer,
    InMemoryEvaluatorHook: _ByTimer,
    StepRate: _ByTimer,
    StopWhen: _ByTimer,
    TrainingLog: _Logging,
}


def may_trace(hook: Any) -> bool:
    """Return whether `hook` may ask for a trace of a run, as a ProfilerHook does, or a class unknown here."""
    known = (*_SCHEDULES, _train.NanTensorHook, _train.FeedFnHook, _train.GlobalStepWaiterHook)
    if type(hook) is _train.ProfilerHook:
        return True
    return type(hook).before_run is not _train.SessionRunHook.before_run and type(hook) not in known


def schedule_of(hook: Any) -> Schedule | None:
    """Return the schedule of `hook`, or None when it must be called at every step."""
    schedule = _SCHEDULES.get(type(hook))
    return None if schedule is None else schedule(hook)
