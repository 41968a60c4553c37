"""`learn_runner.run`: one call that does an experiment's part in this process, whichever that is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from appliance.estimator.cluster import TaskType
from appliance.estimator.experiment import Experiment
from appliance.estimator.run_config import RunConfig

_BY_TASK = {
    TaskType.MASTER: "train_and_evaluate",
    TaskType.CHIEF: "train",
    TaskType.WORKER: "train",
    TaskType.PS: "run_std_server",
    TaskType.EVALUATOR: "continuous_eval",
}


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: str | None = None,
    schedule: str | None = None,
    run_config: RunConfig | None = None,
    hparams: Any = None,
) -> Any:
    """Make an experiment and run one of its schedules (`tf.contrib.learn.learn_runner.run`).

    Args:
        experiment_fn: with `output_dir` it is called with that; with `run_config`, as
            `experiment_fn(run_config=..., hparams=...)`. Returns an `Experiment`.
        output_dir: the model_dir; the old form.
        schedule: a method of the experiment: `train`, `evaluate`, `train_and_evaluate`, `continuous_eval`,
            `continuous_eval_on_train_data`, `continuous_train_and_eval`, `run_std_server`,
            `test`. None: what the task in TF_CONFIG does, and `train_and_evaluate` on one machine.
        run_config: a `RunConfig` with a model_dir.
        hparams: passed on to `experiment_fn`.

    Returns:
        what the schedule returns.

    Raises:
        ValueError: not exactly one of `output_dir` and `run_config` is given, there is no model_dir, or the
            experiment has no such schedule.
        TypeError: an argument is of another type.
    """
    if not callable(experiment_fn):
        raise TypeError(f"experiment_fn must be callable. Received: {experiment_fn!r}.")
    if run_config is None:
        experiment = _by_output_dir(experiment_fn, output_dir, hparams)
    else:
        experiment = _by_run_config(experiment_fn, output_dir, run_config, hparams)
    if not isinstance(experiment, Experiment):
        raise TypeError(f"experiment_fn must return an Experiment. Received: {experiment!r}.")
    name = schedule or _default_schedule(run_config or experiment.estimator.config)
    method = getattr(experiment, name, None)
    if name.startswith("_") or not inspect.ismethod(method):
        raise ValueError(f"The experiment has no schedule {name!r}. It has: {', '.join(_schedules())}.")
    return method()


def _by_output_dir(experiment_fn: Callable[..., Any], output_dir: str | None, hparams: Any) -> Any:
    if not output_dir:
        raise ValueError("Must specify an output directory, or a run_config with a model_dir. Given: neither")
    if hparams is not None:
        raise ValueError(f"hparams need a run_config, but only output_dir is given: {output_dir!r}.")
    return experiment_fn(output_dir)


def _by_run_config(
    experiment_fn: Callable[..., Any], output_dir: str | None, run_config: RunConfig, hparams: Any
) -> Any:
    if output_dir is not None:
        raise ValueError(
            f"Cannot provide both output_dir and run_config. Given: {output_dir!r} and a config."
        )
    if not isinstance(run_config, RunConfig):
        raise TypeError(f"run_config must be a RunConfig. Received: {run_config!r}.")
    if not run_config.model_dir:
        raise ValueError("Must specify model_dir in run_config. Given: None")
    return experiment_fn(run_config=run_config, hparams=hparams)


def _default_schedule(config: Any) -> str:
    """Return what this process does: its part in the cluster, or everything."""
    if not config.cluster_spec and config.task_type != TaskType.EVALUATOR:
        return "train_and_evaluate"
    return _BY_TASK[config.task_type]


def _schedules() -> list[str]:
    verbs = ("train", "evaluate", "continuous", "run_", "test")
    return sorted(
        name for name in vars(Experiment) if name.startswith(verbs) and callable(getattr(Experiment, name))
    )
