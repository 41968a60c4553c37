"""Summaries: the loss of training and the results of evaluations, where TensorBoard finds them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

log = logging.getLogger("appliance.estimator")


def add_loss_summary(loss: Any) -> None:
    """Add a summary of the training loss to the default graph, unless the model_fn has made one."""
    summaries = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        tf.compat.v1.summary.scalar("loss", loss)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOSSES, loss)


def write_evaluation(folder: str, results: Mapping[str, Any], step: int, checkpoint_path: str | None) -> None:
    """Write one event per evaluation into `folder`: each result under its own name, but for the global step.

    Numbers become scalars, arrays tensors, and bytes are taken for serialised summaries. The path of the
    checkpoint goes under `checkpoint_path`.
    """
    writer = tf.compat.v1.summary.FileWriterCache.get(folder)
    summary = tf.compat.v1.Summary()
    for name, value in results.items():
        if value is not None and name != tf.compat.v1.GraphKeys.GLOBAL_STEP:
            _add(summary, name, value)
    writer.add_summary(summary, step)
    if checkpoint_path is not None:
        path = tf.compat.v1.Summary()
        path.value.add(tag="checkpoint_path", tensor=tf.make_tensor_proto(checkpoint_path, dtype=tf.string))
        writer.add_summary(path, step)
    writer.flush()


def scalar_events(pattern: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the scalars by name of each event in the files that `pattern` matches.

    A file that is broken, or still being written, is left at the place where it breaks off.
    """
    for path in sorted(tf.io.gfile.glob(pattern)):
        try:
            for event in tf.compat.v1.train.summary_iterator(path):
                values = event.summary.value
                scalars = {
                    value.tag: value.simple_value for value in values if value.HasField("simple_value")
                }
                if scalars:
                    yield event.step, scalars
        except tf.errors.DataLossError as error:
            log.warning("event_file_broken", extra={"path": path, "error": str(error)})


def _add(summary: Any, name: str, value: Any) -> None:
    if isinstance(value, bytes):
        _add_serialized(summary, name, value)
    elif np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, np.ndarray):
        summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
    else:
        log.warning("summary_skipped", extra={"metric": name, "type": type(value).__name__})


def _add_serialized(summary: Any, name: str, value: bytes) -> None:
    try:
        parsed = tf.compat.v1.Summary.FromString(value)
    except DecodeError:
        log.warning("summary_skipped", extra={"metric": name, "type": "bytes that are no Summary"})
        return
    for index, entry in enumerate(parsed.value):
        entry.tag = f"{name}/{index}"
    summary.value.extend(parsed.value)
