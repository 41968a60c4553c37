"""Warm start: first values of variables from another model's checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.saved_model import path_helpers
from tensorflow.python.training.warm_starting_util import VocabInfo as _VocabInfo

log = logging.getLogger("appliance.estimator")

VocabInfo = _VocabInfo
"""How the rows of a variable moved when its vocabulary changed (`tf.estimator.VocabInfo`)."""


class _Fields(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: Mapping[str, Any]
    var_name_to_prev_var_name: Mapping[str, str]


class WarmStartSettings(_Fields):
    """Which variables start with the values of another checkpoint, and of which variables there.

    Fields:
        ckpt_to_initialize_from: a checkpoint (`model_dir/model.ckpt-100`) or a model_dir, which stands for
            its newest checkpoint.
        vars_to_warm_start: a regular expression, or a list of them as one string: *trainable* variables that
            it matches; a list of strings: all variables with a name that begins with a match of one, so the
            state of optimizers and moving averages too; a list of variables: those; None: only trainable
            variables with a `VocabInfo`.
        var_name_to_vocab_info: for each variable whose rows belong to a vocabulary, the `VocabInfo`. New
            entries get `backup_initializer`, or zero.
        var_name_to_prev_var_name: the name in the checkpoint of each variable that has another there.

    Raises:
        ValueError: there is no checkpoint to start from.

    Source: `tf.estimator.WarmStartSettings`.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: str | os.PathLike[str],
        vars_to_warm_start: str | Sequence[Any] | None = ".*",
        var_name_to_vocab_info: Mapping[str, Any] | None = None,
        var_name_to_prev_var_name: Mapping[str, str] | None = None,
    ) -> WarmStartSettings:
        """Complete the fields and return the settings."""
        if not ckpt_to_initialize_from:
            raise ValueError(
                "`ckpt_to_initialize_from` MUST be set in WarmStartSettings. Give a checkpoint or model_dir."
            )
        return super().__new__(
            cls,
            os.fspath(ckpt_to_initialize_from),
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def settings_from(warm_start_from: Any) -> WarmStartSettings | None:
    """Return the settings that the argument `warm_start_from` of an Estimator stands for.

    Raises:
        ValueError: it is neither a path nor WarmStartSettings.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, str | bytes | os.PathLike):
        raise ValueError(
            "warm_start_from must be a string or a WarmStartSettings, "
            f"instead got {type(warm_start_from)}: {warm_start_from!r}."
        )
    path = os.fsdecode(warm_start_from)
    if tf.compat.v1.saved_model.contains_saved_model(path):
        path = path_helpers.get_variables_path(path)
    return WarmStartSettings(path)


def warm_start(settings: WarmStartSettings) -> None:
    """Let variables of the default graph begin with the values in the checkpoint of `settings`.

    Raises:
        ValueError: the checkpoint is not there or lacks a variable, a shape differs, or `settings` name a
            variable that is not to be started.
    """
    path = checkpoint_of(settings)
    log.info("warm_start", extra={"checkpoint": path})
    _check_variables(path, settings)
    tf.compat.v1.train.warm_start(
        path,
        vars_to_warm_start=settings.vars_to_warm_start,
        var_name_to_vocab_info=dict(settings.var_name_to_vocab_info),
        var_name_to_prev_var_name=dict(settings.var_name_to_prev_var_name),
    )


def checkpoint_of(settings: WarmStartSettings) -> str:
    """Return the path of the checkpoint that `settings` start from.

    Raises:
        ValueError: there is none.
    """
    path = settings.ckpt_to_initialize_from
    found = tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path
    if found is None or not tf.io.gfile.glob(f"{found}.index"):
        raise ValueError(
            f"Couldn't find a checkpoint to warm-start from at {path}. Give a folder with one, the path "
            "of one without a suffix as in model_dir/model.ckpt-100, or a SavedModel's folder."
        )
    return found


def _check_variables(path: str, settings: WarmStartSettings) -> None:
    """Compare the variables to start with those in the checkpoint, so that all misfits are told at once."""
    there = dict(tf.train.list_variables(path))
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in there:  # Its names are paths of objects: TensorFlow maps those.
        return
    problems = []
    for variable in _chosen(settings.vars_to_warm_start):
        name = variable.op.name
        # TensorFlow puts the parts of a partitioned variable together and checks them itself.
        if name in settings.var_name_to_vocab_info or variable._get_save_slice_info() is not None:
            continue
        previous = settings.var_name_to_prev_var_name.get(name, name)
        if previous not in there:
            problems.append(f"{name}: the checkpoint has no {previous}")
        elif not variable.shape.is_compatible_with(there[previous]):
            problems.append(f"{name}: {variable.shape} here, {there[previous]} as {previous} there")
    if problems:
        raise ValueError(
            f"Cannot warm-start from {path}: {'; '.join(problems)}. Leave these variables out of "
            "vars_to_warm_start, or name their counterparts in var_name_to_prev_var_name. "
            f"The checkpoint has: {_described(there)}."
        )


def _chosen(wanted: Any) -> list[Any]:
    """Return the variables of the default graph to start without a vocabulary."""
    keys = tf.compat.v1.GraphKeys
    if wanted is None:
        return []
    if isinstance(wanted, str):
        return tf.compat.v1.get_collection(keys.TRAINABLE_VARIABLES, scope=wanted)
    chosen = []
    for entry in wanted:
        if isinstance(entry, str):
            chosen.extend(tf.compat.v1.get_collection(keys.GLOBAL_VARIABLES, scope=entry))
        elif not isinstance(entry, list):
            chosen.append(entry)
    return chosen


def _described(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items()))
