"""The hooks that training has without being asked: NaN check, progress, checkpoints, summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.hooks.own import CheckpointSaver, StepRate, TrainingLog
from appliance.estimator.run_config import RunConfig

_train = tf.compat.v1.train


def training_hooks(config: RunConfig, spec: Any, hooks: Sequence[Any], listeners: Sequence[Any]) -> list[Any]:
    """Return all hooks of a training run in the order in which they are called.

    The caller's come first, then the NaN check and the log of the loss, then the spec's; the chief adds its
    own, the checkpoints, the step counter and the summaries.

    Raises:
        ValueError: there are saving listeners, but nothing saves checkpoints.
    """
    everywhere = [*hooks, _train.NanTensorHook(spec.loss)]
    if config.log_step_count_steps:
        tensors = {"loss": spec.loss, "step": tf.compat.v1.train.get_global_step()}
        everywhere.append(TrainingLog(tensors, every_n_iter=config.log_step_count_steps))
    everywhere.extend(spec.training_hooks)
    savers = _savers(config, spec, [*everywhere, *spec.training_chief_hooks])
    if listeners:
        _attach(listeners, savers, [*everywhere, *spec.training_chief_hooks])
    if not config.is_chief:
        return everywhere
    return [*everywhere, *spec.training_chief_hooks, *savers, *_progress(config, spec)]


def _savers(config: RunConfig, spec: Any, others: Sequence[Any]) -> list[Any]:
    """Return the checkpoint saver that the config asks for, unless there is one already."""
    wanted = config.save_checkpoints_secs or config.save_checkpoints_steps
    if not wanted or any(isinstance(hook, _train.CheckpointSaverHook) for hook in others):
        return []
    return [
        CheckpointSaver(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=spec.scaffold,
            save_graph_def=config.checkpoint_save_graph_def,
        )
    ]


def _attach(listeners: Sequence[Any], savers: Sequence[Any], others: Sequence[Any]) -> None:
    saving = [*(hook for hook in others if isinstance(hook, _train.CheckpointSaverHook)), *savers]
    if not saving:
        raise ValueError(
            "There should be a CheckpointSaverHook to use saving_listeners. "
            "Set one of RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
        )
    saving[0]._listeners.extend(listeners)


def _progress(config: RunConfig, spec: Any) -> list[Any]:
    hooks = []
    if config.log_step_count_steps:
        hooks.append(StepRate(every_n_steps=config.log_step_count_steps, output_dir=config.model_dir))
    if config.save_summary_steps:
        hooks.append(
            _train.SummarySaverHook(
                save_steps=config.save_summary_steps, output_dir=config.model_dir, scaffold=spec.scaffold
            )
        )
    return hooks
