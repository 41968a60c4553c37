"""Early stopping: hooks that end training by what evaluations have found."""

from __future__ import annotations

import functools
import logging
import operator
import os
from collections.abc import Callable, Mapping

import tensorflow as tf

from appliance.estimator import checkpoints
from appliance.estimator.cluster import spans_workers
from appliance.estimator.estimator import Estimator
from appliance.estimator.hooks.stopping import StopAtCheckpoint, StopWhen, StopWithChief
from appliance.estimator.summaries import scalar_events

log = logging.getLogger("appliance.estimator")

Better = Callable[[float, float], bool]


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.compat.v1.train.SessionRunHook:
    """Return a hook for training that ends it when `should_stop_fn` says so.

    In a cluster the chief asks the function, and the workers stop with the chief.

    Args:
        estimator: the Estimator that is trained.
        should_stop_fn: takes nothing; true ends the training.
        run_every_secs, run_every_steps: how often it is asked, in seconds or steps. To give steps, set
            `run_every_secs` to None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: both or none of the intervals are given.

    Source: `tf.estimator.experimental.make_early_stopping_hook`.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"`estimator` must have type `Estimator`. Got: {type(estimator)}.")
    if run_every_secs is not None and run_every_steps is not None:
        raise ValueError(
            "Only one of `run_every_secs` and `run_every_steps` must be set. "
            f"Given: {run_every_secs} s and {run_every_steps} steps; set the other to None."
        )
    config = estimator.config
    in_step = spans_workers(config.train_distribute)
    if not config.is_chief:
        # Workers that train in step hear of the end of any of them anyway.
        return tf.compat.v1.train.SessionRunHook() if in_step else StopWithChief()
    workers = config.num_worker_replicas > 1 and not in_step
    return StopWhen(should_stop_fn, run_every_secs, run_every_steps, tells_workers=workers)


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> tf.compat.v1.train.SessionRunHook:
    """Return a hook that ends training at `last_step`, on workers only once a checkpoint has it.

    Workers that train in step end there all at once.

    Args:
        wait_after_file_check_secs: pause of a worker between two looks at the checkpoints, in seconds.

    Raises:
        ValueError: there is no `last_step`.

    Source: `tf.estimator.experimental.make_stop_at_checkpoint_step_hook`.
    """
    if last_step is None:
        raise ValueError("last_step must be specified. Given: None")
    config = estimator.config
    if config.is_chief or spans_workers(config.train_distribute):
        return tf.compat.v1.train.StopAtStepHook(last_step=last_step)

    def newest() -> int:
        return checkpoints.global_step(estimator.latest_checkpoint())

    return StopAtCheckpoint(newest, last_step, wait_after_file_check_secs)


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.compat.v1.train.SessionRunHook:
    """Return a hook that ends training when a metric is higher than `threshold` in any evaluation.

    Args:
        metric_name: a key of the evaluations' results.
        eval_dir: the folder of the evaluations' event files; None: `estimator.eval_dir()`.
        min_steps: evaluations at earlier global steps are left out.
        estimator, run_every_secs, run_every_steps: as for `make_early_stopping_hook`.

    Raises:
        ValueError: in training, if the evaluations have no such metric; or see `make_early_stopping_hook`.

    Source: `tf.estimator.experimental.stop_if_higher_hook`.
    """
    crossed = functools.partial(_crossed, threshold=threshold, beyond=operator.gt)
    return _hook(estimator, metric_name, crossed, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.compat.v1.train.SessionRunHook:
    """Return a hook that ends training when a metric is lower than `threshold` in any evaluation.

    Arguments and errors: as for `stop_if_higher_hook`.

    Source: `tf.estimator.experimental.stop_if_lower_hook`.
    """
    crossed = functools.partial(_crossed, threshold=threshold, beyond=operator.lt)
    return _hook(estimator, metric_name, crossed, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.compat.v1.train.SessionRunHook:
    """Return a hook that ends training when a metric has not risen above its best for so many steps.

    Other arguments and errors: as for `stop_if_higher_hook`.

    Source: `tf.estimator.experimental.stop_if_no_increase_hook`.
    """
    stalled = functools.partial(_stalled, patience=max_steps_without_increase, better=operator.gt)
    return _hook(estimator, metric_name, stalled, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.compat.v1.train.SessionRunHook:
    """Return a hook that ends training when a metric has not fallen below its best for so many steps.

    Other arguments and errors: as for `stop_if_higher_hook`.

    Source: `tf.estimator.experimental.stop_if_no_decrease_hook`.
    """
    stalled = functools.partial(_stalled, patience=max_steps_without_decrease, better=operator.lt)
    return _hook(estimator, metric_name, stalled, eval_dir, min_steps, run_every_secs, run_every_steps)


def _crossed(values: Mapping[int, float], threshold: float, beyond: Better) -> bool:
    """Return whether any value is beyond the threshold."""
    return any(beyond(value, threshold) for value in values.values())


def _stalled(values: Mapping[int, float], patience: int, better: Better) -> bool:
    """Return whether at any step the best value so far was at least `patience` steps old."""
    best_step = None
    for step, value in values.items():
        if best_step is None or better(value, values[best_step]):
            best_step = step
        if step - best_step >= patience:
            return True
    return False


def _hook(
    estimator: Estimator,
    metric_name: str,
    judge: Callable[[Mapping[int, float]], bool],
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> tf.compat.v1.train.SessionRunHook:
    """Return the hook that stops when `judge`, given the metric by global step in order, is true."""
    if not isinstance(estimator, Estimator):
        raise TypeError(f"`estimator` must have type `Estimator`. Got: {type(estimator)}.")
    history = _History(estimator.eval_dir() if eval_dir is None else eval_dir)

    def should_stop() -> bool:
        values = history.of(metric_name, min_steps)
        if not judge(values):
            return False
        log.info("early_stopping_metric", extra={"metric": metric_name, "values": values})
        return True

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


class _History:
    """The results in the event files of a folder, read again only when a file has changed."""

    def __init__(self, folder: str) -> None:
        self._pattern = os.path.join(folder, "*.tfevents.*")
        self._seen: list[tuple[str, int]] = []
        self._by_step: dict[int, dict[str, float]] = {}

    def of(self, metric: str, min_steps: int) -> dict[int, float]:
        """Return the metric by global step, from `min_steps` on, in order.

        Raises:
            ValueError: an evaluation has no such metric.
        """
        files = [(path, tf.io.gfile.stat(path).length) for path in sorted(tf.io.gfile.glob(self._pattern))]
        if files != self._seen:
            self._by_step = {}
            for step, scalars in scalar_events(self._pattern):
                self._by_step.setdefault(step, {}).update(scalars)
            self._seen = files
        values = {}
        for step in sorted(step for step in self._by_step if step >= min_steps):
            results = self._by_step[step]
            if metric not in results:
                raise ValueError(
                    f"The evaluation at step {step} in {os.path.dirname(self._pattern)} has no metric "
                    f"{metric!r}. It has: {sorted(results)}."
                )
            values[step] = results[metric]
        return values
