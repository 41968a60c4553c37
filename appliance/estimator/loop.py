"""The step loop: one prepared callable a step, and hooks only where they have something to do."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training.basic_session_run_hooks import NanLossDuringTrainingError

from appliance.estimator.hooks.schedule import Due, Schedule, schedule_of

_train = tf.compat.v1.train
# The constructor goes through a deprecation notice: that takes as long as all else around a step.
_run_values = _train.SessionRunValues._make


class HookedRun:
    """Runs the same fetches again and again, with SessionRunHooks around each run.

    A run in which no hook asks for fetches, feeds or options goes through a prepared callable. The others go
    through `session.run`, with the requests of all hooks merged as `tf.compat.v1.train.MonitoredSession`
    merges them.

    Args:
        session: the session to run in.
        fetches: an operation, a tensor, or a list or dict of them.
    """

    def __init__(self, session: Any, fetches: Any) -> None:
        self._session = session
        self._fetches = fetches
        self.call: Callable[[], Any] = session.make_callable(fetches)
        self._original = _train.SessionRunArgs(fetches, None)

    def context(self) -> Any:
        """Return the SessionRunContext of one run."""
        return _train.SessionRunContext(self._original, self._session)

    def run(self, context: Any, hooks: Sequence[Any]) -> tuple[Any, dict[Any, Any], Any, Any]:
        """Ask `hooks` what they want and run once.

        Returns:
            the values of the fetches, the values for each hook that asked for some, and the options and
            metadata of the run.

        Raises:
            RuntimeError: two hooks feed the same tensor.
        """
        options, metadata = tf.compat.v1.RunOptions(), tf.compat.v1.RunMetadata()
        wanted: dict[Any, Any] = {}
        feeds: dict[Any, Any] = {}
        plain = True
        for hook in hooks:
            request = hook.before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                wanted[hook] = request.fetches
            if request.feed_dict:
                _merge_feeds(feeds, request.feed_dict)
            if request.options:
                _merge_options(options, request.options)
                plain = False
        if plain and not wanted and not feeds:
            return self.call(), wanted, options, metadata
        results = self._session.run(
            {"caller": self._fetches, **wanted}, feed_dict=feeds, options=options, run_metadata=metadata
        )
        return results.pop("caller"), results, options, metadata


def _merge_feeds(feeds: dict[Any, Any], more: dict[Any, Any]) -> None:
    for tensor, value in more.items():
        if any(tensor is fed for fed in feeds):
            raise RuntimeError(f"Same tensor is fed by two hooks: {tensor}. Let one of them feed it.")
        feeds[tensor] = value


def _merge_options(options: Any, more: Any) -> None:
    for field in ("trace_level", "timeout_in_ms", "inter_op_thread_pool"):
        setattr(options, field, max(getattr(options, field), getattr(more, field)))
    for field in ("output_partition_graphs", "report_tensor_allocations_upon_oom"):
        setattr(options, field, getattr(options, field) or getattr(more, field))
    options.debug_options.debug_tensor_watch_opts.extend(more.debug_options.debug_tensor_watch_opts)
    options.debug_options.reset_disk_byte_usage |= more.debug_options.reset_disk_byte_usage


def overrides(hook: Any, method: str) -> bool:
    """Return whether the class of `hook` has a `method` of its own, other than SessionRunHook's empty one."""
    return getattr(type(hook), method) is not getattr(_train.SessionRunHook, method)


def run_until_stopped(
    session: Any, coordinator: Any, fetches: Any, hooks: Sequence[Any], limit: int | None = None
) -> int:
    """Run `fetches` until a hook or the coordinator asks to stop, the input ends, or `limit` runs are done.

    Every hook is called at every run. Returns the number of runs; an input that ends is not an error.
    """
    runner, asked, told = HookedRun(session, fetches), *_callers(hooks)
    done = 0
    while (limit is None or done < limit) and not _should_stop(coordinator):
        try:
            if not asked and not told:
                runner.call()
            elif _run_with_hooks(runner, asked, told)[1]:
                return done + 1
        except tf.errors.OutOfRangeError:
            break
        done += 1
    return done


class HookedFetches:
    """Yields the values of `fetches`, run by run, until a hook asks to stop or the input ends."""

    def __init__(self, session: Any, coordinator: Any, fetches: Any, hooks: Sequence[Any]) -> None:
        self._runner = HookedRun(session, fetches)
        self._asked, self._told = _callers(hooks)
        self._coordinator = coordinator
        self._stopped = False

    def __iter__(self) -> HookedFetches:
        return self

    def __next__(self) -> Any:
        if self._stopped or _should_stop(self._coordinator):
            raise StopIteration
        try:
            values, self._stopped = _run_with_hooks(self._runner, self._asked, self._told)
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        return values


def _callers(hooks: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the hooks to ask before each run, and those to tell after it."""
    return [h for h in hooks if overrides(h, "before_run")], [h for h in hooks if overrides(h, "after_run")]


def _run_with_hooks(runner: HookedRun, asked: Sequence[Any], told: Sequence[Any]) -> tuple[Any, bool]:
    context = runner.context()
    values, results, options, metadata = runner.run(context, asked)
    for hook in told:
        hook.after_run(context, _run_values((results.get(hook), options, metadata)))
    return values, context.stop_requested


def _should_stop(coordinator: Any) -> bool:
    if not coordinator.should_stop():
        return False
    coordinator.raise_requested_exception()
    return True


class LossFollower(tf.compat.v1.train.SessionRunHook):
    """A hook that may look at the last step's loss at any time, without asking for fetches."""

    loop: TrainingLoop | None = None
    """The loop that calls the hook, set when the loop is made."""

    @property
    def last_loss(self) -> float | None:
        """The loss of the last step; None before the first."""
        return None if self.loop is None or self.loop.last_loss is None else float(self.loop.last_loss)


class TrainingLoop:
    """Runs the train op until a hook asks to stop or the input ends.

    Make it while the graph can still grow. On an ordinary step nothing happens but one prepared callable,
    which runs the train op and returns the global step after it and the loss; the loss is compared with NaN
    at every step.

    Args:
        train_op: the operation of one step; it adds one to the global step.
        loss: scalar loss.
        global_step: the global step variable.
        hooks: all hooks in the order in which they are to be called. Those that `hooks.schedule` knows are
            called when they are due; a NanTensorHook on `loss` only when the loss is NaN; all others at every
            step.
        agreement: what several workers settle before each step; None for one that trains alone.
    """

    def __init__(
        self, *, train_op: Any, loss: Any, global_step: Any, hooks: Sequence[Any], agreement: Any = None
    ) -> None:
        with tf.control_dependencies([train_op]):
            self._step_after = tf.identity(global_step.read_value(), name="step_after_training")
        self._global_step = global_step
        self._loss = loss
        self._hooks = tuple(hooks)
        self._agreement = agreement
        for hook in self._hooks:
            if isinstance(hook, LossFollower):
                hook.loop = self
        self.last_loss: Any = None
        """The loss of the last step, as a numpy scalar; None before the first."""
        self.data_ended = False
        """Whether the last run ended because the input did."""
        self.last_step: int | None = None
        """The global step after the last step; None before a session is there."""

    def run(self, session: Any, coordinator: Any) -> None:
        """Train until told to stop.

        Raises:
            NanLossDuringTrainingError: the loss became NaN (from the NanTensorHook).
        """
        training = _Training(self, session, coordinator)
        others = self._agreement
        try:
            with contextlib.nullcontext() if others is None else others.between_workers(session):
                training.run()
        except NanLossDuringTrainingError as error:
            error.add_note(
                f"The loss became NaN at step {int(training.step)}. Lower the learning rate or clip "
                "gradients, and look for NaN, infinities and very large numbers in the features and labels."
            )
            raise
        finally:
            self.last_step = int(training.step)


class _Training:
    """One run of a TrainingLoop in one session."""

    def __init__(self, loop: TrainingLoop, session: Any, coordinator: Any) -> None:
        self._loop = loop
        self._coordinator = coordinator
        self._runner = HookedRun(session, [loop._step_after, loop._loss])
        self.step = int(session.run(loop._global_step))
        self._local_step = 0
        self._nan_hooks = [hook for hook in loop._hooks if _watches(hook, loop._loss)]
        others = [hook for hook in loop._hooks if hook not in self._nan_hooks]
        self._schedules: dict[Any, Schedule] = {
            hook: schedule for hook in others if (schedule := schedule_of(hook)) is not None
        }
        self._always = [hook for hook in others if hook not in self._schedules]
        self._always_asked, self._always_told = _callers(self._always)
        self._every_step = bool(self._always_asked or self._always_told)
        for schedule in self._schedules.values():
            schedule.prepare(self.step, 0)
        self._reschedule()

    def _reschedule(self) -> None:
        """Find the next step and time at which any scheduled hook acts, before a run and after one."""
        ask, tell = Due(), Due()
        for schedule in self._schedules.values():
            due = schedule.due()
            if schedule.before:
                ask = Due(min(ask.step, due.step), min(ask.time, due.time))
            else:
                tell = Due(min(tell.step, due.step), min(tell.time, due.time))
        self._ask_step, self._tell_step = ask.step, tell.step
        self._ask_time, self._tell_time = ask.time, tell.time
        self._timed = min(ask.time, tell.time) < math.inf

    def run(self) -> None:
        """Run steps until told to stop, or the input ends."""
        should_stop = self._should_stop()
        call = self._runner.call
        loop = self._loop
        now = time.time()
        try:
            while not should_stop():
                if self._timed:
                    now = time.time()
                if self._every_step or self.step >= self._ask_step or now >= self._ask_time:
                    stopping = self._full_step(now)
                else:
                    self.step, loss = call()
                    self._local_step += 1
                    loop.last_loss = loss
                    # NaN is the only value that differs from itself.
                    stopping = loss != loss and self._tell_nan()
                    if self.step >= self._tell_step or now >= self._tell_time:
                        stopping = self._tell_after(now) or stopping
                if stopping:
                    return
        except tf.errors.OutOfRangeError:
            loop.data_ended = True
            return
        self._coordinator.raise_requested_exception()

    def _should_stop(self) -> Callable[[], bool]:
        """Return what is asked before each step whether it is not to be made."""
        agreement, stopped = self._loop._agreement, self._coordinator.should_stop
        if agreement is None:
            return stopped

        def stopped_or_others_have() -> bool:
            if stopped():
                return True
            going_on = agreement.goes_on()
            self._loop.data_ended = agreement.out_of_data
            return not going_on

        return stopped_or_others_have

    def _is_due(self, schedule: Schedule, step: int, now: float) -> bool:
        due = schedule.due()
        return step >= due.step or now >= due.time

    def _is_due_after(self, hook: Any, now: float) -> bool:
        schedule = self._schedules.get(hook)
        return schedule is not None and not schedule.before and self._is_due(schedule, self.step, now)

    def _full_step(self, now: float) -> bool:
        """Run one step with every hook that has a part in it, in order. Returns whether to stop."""
        before, fetching = self.step, set()
        if before >= self._ask_step or now >= self._ask_time:
            fetching = {h for h, s in self._schedules.items() if s.before and self._is_due(s, before, now)}
        for hook in fetching:
            self._schedules[hook].prepare(before, self._local_step)
        asked = self._always_asked
        if fetching:
            asked = [hook for hook in self._loop._hooks if hook in fetching or hook in self._always_asked]
        context = self._runner.context()
        (self.step, loss), results, options, metadata = self._runner.run(context, asked)
        self._local_step += 1
        self._loop.last_loss = loss
        if not fetching and loss == loss and self.step < self._tell_step and now < self._tell_time:
            # Nothing but hooks that are called at every step: no others are looked at.
            for hook in self._always_told:
                hook.after_run(context, _run_values((results.get(hook), options, metadata)))
            return context.stop_requested
        for hook in self._loop._hooks:
            if hook in self._nan_hooks:
                if loss != loss:
                    hook.after_run(context, _run_values((loss, options, metadata)))
            elif hook in fetching or hook in self._always_told:
                hook.after_run(context, _run_values((results.get(hook), options, metadata)))
            elif self._is_due_after(hook, now):
                hook.after_run(context, _run_values((before, options, metadata)))
        self._reschedule()
        return context.stop_requested

    def _tell_after(self, now: float) -> bool:
        """Call the scheduled hooks that act after the run just made. Returns whether to stop."""
        context = self._runner.context()
        values = _values(self.step - 1)
        for hook in self._schedules:
            if self._is_due_after(hook, now):
                hook.after_run(context, values)
        self._reschedule()
        return context.stop_requested

    def _tell_nan(self) -> bool:
        """Call the hooks that watch for NaN: each raises, or asks to stop. Returns whether to stop."""
        context = self._runner.context()
        values = _values(self._loop.last_loss)
        for hook in self._nan_hooks:
            hook.after_run(context, values)
        return context.stop_requested


def _values(results: Any) -> Any:
    return _run_values((results, tf.compat.v1.RunOptions(), tf.compat.v1.RunMetadata()))


def _watches(hook: Any, loss: Any) -> bool:
    return type(hook) is _train.NanTensorHook and hook._loss_tensor is loss
