"""Hooks that end training: when a function says so, when the chief has, when a checkpoint is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

log = logging.getLogger("appliance.estimator")

_train = tf.compat.v1.train


def _stop_variable() -> Any:
    """Return the variable through which the chief of a cluster tells its workers to stop."""
    with tf.compat.v1.variable_scope("signal_early_stopping", reuse=tf.compat.v1.AUTO_REUSE):
        return tf.compat.v1.get_variable(
            "STOP",
            shape=[],
            dtype=tf.bool,
            initializer=tf.compat.v1.zeros_initializer(),
            collections=[tf.compat.v1.GraphKeys.GLOBAL_VARIABLES],
            trainable=False,
        )


class StopWhen(tf.compat.v1.train.SessionRunHook):
    """Asks a function now and then whether training is to stop. For one machine, and for a chief.

    Args:
        should_stop_fn: takes nothing; true ends the training.
        every_secs, every_steps: how often it is asked, in seconds or steps; exactly one. It is asked at the
            first step too.
        tells_workers: whether there are workers, which end by a `StopWithChief`. Only then is there a
            variable to share, `signal_early_stopping/STOP`, so that on one machine a checkpoint is the same
            with and without this hook.

    Raises:
        TypeError: `should_stop_fn` is not callable.
        ValueError: both or none of the intervals are given.
    """

    def __init__(
        self,
        should_stop_fn: Callable[[], bool],
        every_secs: float | None = 60,
        every_steps: int | None = None,
        tells_workers: bool = False,
    ) -> None:
        if not callable(should_stop_fn):
            raise TypeError(f"`should_stop_fn` must be callable. Received: {should_stop_fn!r}.")
        self._should_stop_fn = should_stop_fn
        self._timer = _train.SecondOrStepTimer(every_secs=every_secs, every_steps=every_steps)
        self._tells_workers = tells_workers

    def begin(self) -> None:
        """Find the global step; make the variable for the workers."""
        self._timer.reset()
        self._global_step = _train.get_global_step()
        self._tell: Any = None
        if self._tells_workers:
            self._tell = _stop_variable().assign(True).op

    def before_run(self, run_context: Any) -> Any:
        """Ask for the global step."""
        return _train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ask the function, when it is time."""
        # The step was read while the run was going on; what it is now is only worth a read when it matters.
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        step = run_context.session.run(self._global_step)
        self._timer.update_last_triggered_step(step)
        if not self._should_stop_fn():
            return
        log.info("early_stopping", extra={"step": int(step)})
        if self._tell is not None:
            run_context.session.run(self._tell)
        run_context.request_stop()


class StopWithChief(tf.compat.v1.train.SessionRunHook):
    """Ends the training of a worker once the `StopWhen` of the chief has ended its own."""

    def begin(self) -> None:
        """Find the variable."""
        self._stop = _stop_variable()

    def before_run(self, run_context: Any) -> Any:
        """Ask for the variable."""
        return _train.SessionRunArgs(self._stop)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stop when it is set."""
        if run_values.results:
            log.info("early_stopping", extra={"asked_by": "chief"})
            run_context.request_stop()


class StopAtCheckpoint(tf.compat.v1.train.SessionRunHook):
    """Ends the training of a worker once a checkpoint of the last step is there.

    Args:
        read_step: returns the global step of the newest checkpoint.
        last_step: the step.
        wait_secs: pause between two looks, in seconds, since many workers look at one file.
    """

    def __init__(self, read_step: Callable[[], int], last_step: int, wait_secs: float) -> None:
        self._read_step = read_step
        self._last_step = last_step
        self._wait_secs = wait_secs

    def begin(self) -> None:
        """Find the global step."""
        self._global_step = _train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        """Ask for the global step."""
        return _train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Look at the newest checkpoint, once the last step is reached."""
        if run_values.results + 1 < self._last_step:
            return
        if self._read_step() >= self._last_step:
            run_context.request_stop()
        else:
            log.info("waiting_for_last_checkpoint", extra={"step": self._last_step})
            time.sleep(self._wait_secs)
