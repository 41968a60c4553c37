"""TF.Learn's Experiment: an Estimator, its data, and how long to train, evaluate and export."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from appliance.estimator.add_metrics import add_metrics
from appliance.estimator.cluster import spans_workers
from appliance.estimator.cluster_tasks import (
    AnnouncedEnd,
    announced_end,
    start_server,
    worker_delay_seconds,
)
from appliance.estimator.estimator import Estimator
from appliance.estimator.evaluation_policy import TrainingEnd
from appliance.estimator.evaluator import Evaluator, catch_up, follow
from appliance.estimator.export_strategy import Strategies, as_exporters
from appliance.estimator.specs import EvalSpec, TrainSpec, validate_hooks

Metrics = Mapping[str, Any]
PredicateFn = Callable[[Metrics | None], bool]


@runtime_checkable
class EstimatorLike(Protocol):
    """What an experiment needs of an Estimator; the arguments are those of `tf.estimator.Estimator`."""

    @property
    def model_dir(self) -> str: ...
    @property
    def config(self) -> Any: ...
    def train(
        self,
        input_fn: Any,
        hooks: Any = ...,
        steps: Any = ...,
        max_steps: Any = ...,
        saving_listeners: Any = ...,
    ) -> Any: ...
    def evaluate(
        self, input_fn: Any, steps: Any = ..., hooks: Any = ..., checkpoint_path: Any = ..., name: Any = ...
    ) -> Any: ...
    def export_saved_model(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Any,
        assets_extra: Any = ...,
        as_text: Any = ...,
        checkpoint_path: Any = ...,
    ) -> Any: ...
    def latest_checkpoint(self) -> str | None: ...
    def eval_dir(self, name: Any = ...) -> str: ...


class Experiment:
    """Everything needed to train and evaluate one model (`tf.contrib.learn.Experiment`).

    References:
        TF.Learn: TensorFlow's High-level Module for Distributed Machine Learning, arXiv 1612.04251, section
        3.5.
    """

    def __init__(
        self,
        estimator: EstimatorLike,
        train_input_fn: Callable[..., Any],
        eval_input_fn: Callable[..., Any],
        eval_metrics: Callable[..., Mapping[str, Any]] | None = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Iterable[Any] | None = None,
        eval_hooks: Iterable[Any] | None = None,
        eval_delay_secs: float = 120,
        continuous_eval_throttle_secs: float = 60,
        min_eval_frequency: int | None = None,
        delay_workers_by_global_step: bool = False,
        export_strategies: Strategies = None,
        train_steps_per_iteration: int | None = None,
        checkpoint_and_export: bool = False,
        saving_listeners: Iterable[Any] | None = None,
        check_interval_secs: float = 5,
    ) -> None:
        """Check the arguments and make the experiment.

        Args:
            estimator: what to train; anything with the methods of an Estimator.
            train_input_fn: the training data, as for `Estimator.train`.
            eval_input_fn: the evaluation data, as for `Estimator.evaluate`.
            eval_metrics: a `metric_fn` whose metrics are added to those of the model, as by `add_metrics`.
            train_steps: the global step to train to; None trains until the input ends.
            eval_steps: batches of an evaluation; None evaluates all of the input.
            train_monitors: `SessionRunHook`s for the training.
            eval_hooks: `SessionRunHook`s for the evaluations.
            eval_delay_secs: a continuous evaluator waits this long before its first evaluation, in seconds.
            continuous_eval_throttle_secs: it lets this much time pass between the starts of two, in seconds.
            min_eval_frequency: least number of steps between two evaluations; None: every checkpoint; 0: only
                after training.
            delay_workers_by_global_step: in a cluster, let workers join one after the other as the global
                step grows, in place of every five seconds.
            export_strategies: `ExportStrategy`s and `Exporter`s, one or many, asked after each evaluation.
            train_steps_per_iteration: steps between two evaluations of `continuous_train_and_eval`.
            checkpoint_and_export: in `train_and_evaluate`, let strategies export after every evaluation.
                Otherwise only those that judge by the result are asked before the end.
            saving_listeners: `CheckpointSaverListener`s, told of each checkpoint.
            check_interval_secs: `continuous_eval` looks for a new checkpoint this often, in seconds.

        Raises:
            ValueError: a number is out of range, or the names of the strategies clash.
            TypeError: an argument is of another type.
        """
        if not isinstance(estimator, EstimatorLike):
            raise TypeError(f"estimator must have the methods of an Estimator. Received: {estimator!r}.")
        for name, value in (
            ("min_eval_frequency", min_eval_frequency),
            ("check_interval_secs", check_interval_secs),
        ):
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative. Received: {value!r}.")
        if train_steps_per_iteration is not None and train_steps_per_iteration <= 0:
            raise ValueError(
                f"train_steps_per_iteration must be positive. Received: {train_steps_per_iteration!r}."
            )
        self._estimator = estimator if eval_metrics is None else _with_metrics(estimator, eval_metrics)
        self._train = TrainSpec(train_input_fn, train_steps, train_monitors, saving_listeners)
        self._checkpoint_and_export = checkpoint_and_export
        self._eval = EvalSpec(
            eval_input_fn,
            steps=eval_steps,
            hooks=eval_hooks,
            exporters=as_exporters(export_strategies, final_only=False),
            start_delay_secs=eval_delay_secs,
            throttle_secs=continuous_eval_throttle_secs,
        )
        self._strategies = export_strategies
        self._min_eval_frequency = 1 if min_eval_frequency is None else min_eval_frequency
        self._delay_workers_by_global_step = delay_workers_by_global_step
        self._train_steps_per_iteration = train_steps_per_iteration
        self._check_interval_secs = check_interval_secs

    @property
    def estimator(self) -> EstimatorLike:
        """The Estimator, with `eval_metrics` added."""
        return self._estimator

    @property
    def train_spec(self) -> TrainSpec:
        """The data and length of the training, with its hooks and saving listeners."""
        return self._train

    @property
    def eval_spec(self) -> EvalSpec:
        """The data and length of an evaluation, with its hooks and exporters."""
        return self._eval

    @property
    def min_eval_frequency(self) -> int:
        """Least number of steps between two evaluations; 0: only after training."""
        return self._min_eval_frequency

    def extend_train_hooks(self, hooks: Iterable[Any]) -> None:
        """Add hooks to the training."""
        self._train = self._train._replace(hooks=(*self._train.hooks, *validate_hooks(hooks)))

    def train(self, delay_secs: float | None = None) -> EstimatorLike:
        """Train to `train_steps` and return the Estimator.

        As a task of a cluster it starts its server first, and a chief lets evaluators know of the end.

        Args:
            delay_secs: wait before the training; None: not at all, but workers of a cluster begin one after
                the other.

        Raises:
            ValueError: the cluster in TF_CONFIG has no parameter server.
        """
        config = self._estimator.config
        if not config.cluster_spec:
            _sleep(delay_secs)
            return self._run_training(max_steps=self._train.max_steps)
        start_server(config)
        hooks = []
        # Workers that train in step begin with the same step: none waits for another's.
        alone = not spans_workers(config.train_distribute)
        if delay_secs is None and self._delay_workers_by_global_step and alone:
            hooks.append(tf.compat.v1.train.GlobalStepWaiterHook(_step_to_join_at(config.task_id)))
        else:
            _sleep(worker_delay_seconds(config) if delay_secs is None else delay_secs)
        with announced_end(self._estimator.model_dir) if config.is_chief else contextlib.nullcontext():
            return self._run_training(max_steps=self._train.max_steps, hooks=hooks)

    def evaluate(self, delay_secs: float | None = None, name: str | None = None) -> Metrics:
        """Evaluate the newest checkpoint once, after a delay in seconds, and return its metrics."""
        _sleep(delay_secs)
        return self._evaluate_once(self._eval.steps, name)

    def continuous_eval(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        continuous_eval_predicate_fn: PredicateFn | None = None,
        name: str | None = "continuous",
    ) -> Metrics | None:
        """Evaluate and export the checkpoints that another process writes, until one is at `train_steps`.

        Each checkpoint is evaluated once, the newest first; those it has no time for are skipped. Without
        `train_steps` it ends when the chief of its cluster does, or by `continuous_eval_predicate_fn`.
        `continuous.run` makes the process beside the training, which also ends with it.

        Args:
            delay_secs: wait before the first evaluation; None: `eval_delay_secs`.
            throttle_delay_secs: least time between two; None: `continuous_eval_throttle_secs`.
            continuous_eval_predicate_fn: called with the last metrics, None before the first; false ends it.
            name: of the evaluation; its summaries go to `<model_dir>/eval_<name>`.

        Returns:
            The metrics of the last evaluation; None if there was none.
        """
        return self._follow(
            self._eval._replace(name=name),
            delay_secs,
            throttle_delay_secs,
            continuous_eval_predicate_fn,
        )

    def continuous_eval_on_train_data(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        continuous_eval_predicate_fn: PredicateFn | None = None,
        name: str | None = "continuous_on_train_data",
    ) -> Metrics | None:
        """Evaluate checkpoints as `continuous_eval` does, but on the training data, and export nothing."""
        return self._follow(
            self._eval._replace(name=name, input_fn=self._train.input_fn, exporters=()),
            delay_secs,
            throttle_delay_secs,
            continuous_eval_predicate_fn,
        )

    def _follow(
        self,
        spec: EvalSpec,
        delay_secs: float | None,
        throttle_delay_secs: float | None,
        predicate_fn: PredicateFn | None,
    ) -> Metrics | None:
        evaluator = Evaluator(self._estimator, spec)
        follow(
            evaluator,
            AnnouncedEnd(self._estimator.model_dir, self._check_interval_secs),
            max_steps=self._train.max_steps,
            start_delay_secs=spec.start_delay_secs if delay_secs is None else delay_secs,
            throttle_secs=spec.throttle_secs if throttle_delay_secs is None else throttle_delay_secs,
            min_steps_between=self._min_eval_frequency,
            go_on=predicate_fn or _always,
        )
        return evaluator.metrics

    def run_std_server(self) -> None:
        """Serve the cluster in TF_CONFIG as one of its tasks, a parameter server usually, and never return.

        Raises:
            ValueError: TF_CONFIG describes no cluster, or one of this process alone.
        """
        server = start_server(self._estimator.config)
        if server is None:
            raise ValueError(
                "The cluster in TF_CONFIG is this process alone: it needs no server. Train in it."
            )
        server.join()

    def train_and_evaluate(self) -> tuple[Metrics | None, list[str | None]]:
        """Train; evaluate and export at checkpoints in between, and at the end, all in this process.

        Returns:
            The metrics of the last evaluation, and what each strategy exported of its checkpoint.
        """
        exporters = as_exporters(self._strategies, final_only=not self._checkpoint_and_export)
        evaluator = Evaluator(self._estimator, self._eval._replace(exporters=exporters))
        listener = _EvaluateCheckpoints(evaluator, self._train.max_steps, self._min_eval_frequency)
        self._run_training(max_steps=self._train.max_steps, listeners=(listener,))
        catch_up(evaluator, TrainingEnd(final=True), max_steps=self._train.max_steps)
        return evaluator.metrics, evaluator.last_exports

    def continuous_train_and_eval(
        self, continuous_eval_predicate_fn: PredicateFn | None = None
    ) -> tuple[Metrics | None, list[str | None]]:
        """Train `train_steps_per_iteration` steps, evaluate, and again, to `train_steps` or the input's end.

        Args:
            continuous_eval_predicate_fn: called with the last metrics, None before the first; false ends it.

        Returns:
            The metrics of the last evaluation, and what each strategy exported of its checkpoint.
        """
        go_on = continuous_eval_predicate_fn or _always
        evaluator = Evaluator(self._estimator, self._eval)
        step, limit = -1, self._train.max_steps or math.inf
        while go_on(evaluator.metrics):
            newest = evaluator.newest_checkpoint()
            if newest is not None and (newest.step == step or newest.step >= limit):
                break  # The input is exhausted, or all steps are done.
            step = newest.step if newest is not None else 0
            self._run_training(max_steps=int(min(step + self._steps_per_iteration, limit)))
            catch_up(evaluator, TrainingEnd(final=False), max_steps=self._train.max_steps)
        catch_up(evaluator, TrainingEnd(final=True), max_steps=self._train.max_steps)
        return evaluator.metrics, evaluator.last_exports

    @property
    def _steps_per_iteration(self) -> int:
        if self._train_steps_per_iteration is not None:
            return self._train_steps_per_iteration
        return math.ceil(self._train.max_steps / 10) if self._train.max_steps else 1000

    def test(self) -> Metrics:
        """Train, evaluate and export for one step each, to find mistakes early; return the metrics."""
        self._run_training(steps=1)
        metrics = self._evaluate_once(1, "one_pass")
        for exporter in self._eval.exporters:
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=self._estimator.latest_checkpoint() or "",
                eval_result=metrics,
                is_the_final_export=True,
            )
        return metrics

    def _run_training(
        self,
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        listeners: Iterable[Any] = (),
        hooks: Iterable[Any] = (),
    ) -> EstimatorLike:
        return self._estimator.train(
            input_fn=self._train.input_fn,
            hooks=[*self._train.hooks, *hooks],
            steps=steps,
            max_steps=max_steps,
            saving_listeners=[*self._train.saving_listeners, *listeners],
        )

    def _evaluate_once(self, steps: int | None, name: str | None) -> Metrics:
        return self._estimator.evaluate(
            input_fn=self._eval.input_fn, steps=steps, hooks=list(self._eval.hooks), name=name
        )


class _EvaluateCheckpoints(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates and exports checkpoints in the middle of training."""

    def __init__(self, evaluator: Evaluator, max_steps: int | None, min_steps_between: int) -> None:
        self._evaluator = evaluator
        self._max_steps = max_steps
        self._min_steps_between = min_steps_between

    def after_save(self, session: Any, global_step_value: int) -> None:
        catch_up(self._evaluator, None, max_steps=self._max_steps, min_steps_between=self._min_steps_between)


def _with_metrics(estimator: EstimatorLike, metric_fn: Callable[..., Metrics]) -> EstimatorLike:
    if not isinstance(estimator, Estimator):
        raise TypeError(f"eval_metrics can be added to an Estimator only. Received: {estimator!r}.")
    return add_metrics(estimator, metric_fn)


def _step_to_join_at(task_id: int) -> int:
    """Return the global step at which a worker joins: 0, 5545, 8788, ..., ever more slowly."""
    return int(8000 * math.log(task_id + 1))


def _always(metrics: Metrics | None) -> bool:
    return True


def _sleep(seconds: float | None) -> None:
    if seconds:
        time.sleep(seconds)
