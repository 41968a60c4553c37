"""The loss log, step counter and checkpoint saver: TensorFlow's, made to log here and to start faster."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import tensorflow as tf

log = logging.getLogger("appliance.estimator")


class TrainingLog(tf.compat.v1.train.LoggingTensorHook):
    """Logs step and loss every so many steps."""

    def _log_tensors(self, tensor_values: dict[str, Any]) -> None:
        elapsed, _ = self._timer.update_last_triggered_step(self._iter_count)
        fields = {name: value.item() for name, value in tensor_values.items()}
        log.info("training", extra={**fields, "elapsed_seconds": elapsed})


class StepRate(tf.compat.v1.train.StepCounterHook):
    """Logs the steps per second and writes them as the summary `global_step/sec`."""

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        rate = elapsed_steps / elapsed_time
        log.info("training_rate", extra={"step": int(global_step), "steps_per_second": rate})
        if self._summary_writer is not None:
            summary = tf.compat.v1.Summary()
            summary.value.add(tag=self._summary_tag, simple_value=rate)
            self._summary_writer.add_summary(summary, global_step)


class CheckpointSaver(tf.compat.v1.train.CheckpointSaverHook):
    """Saves checkpoints, and the graph as `graph.pbtxt` at the start.

    The graph is asked for its GraphDef only once, as that takes a while; it is final by then, so every
    checkpoint has the same MetaGraphDef.
    """

    _meta_graph: Any = None

    def begin(self) -> None:
        """Open the summaries."""
        # A writer that is made now would write the default graph: too early, and it comes again below.
        with tf.Graph().as_default():
            tf.compat.v1.summary.FileWriterCache.get(self._checkpoint_dir)
        super().begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Write the graph and the first checkpoint."""
        graph_def = session.graph.as_graph_def(add_shapes=True)
        if self._save_graph_def:
            # The printer in Python that tf.io.write_graph uses takes a second for wide & deep; this one is
            # in C.
            path = os.path.join(self._checkpoint_dir, "graph.pbtxt")
            tf.io.gfile.makedirs(self._checkpoint_dir)
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(str(graph_def))
        saver = self._get_saver()
        with session.graph.as_default():
            self._meta_graph = tf.compat.v1.train.export_meta_graph(
                graph_def=graph_def, saver_def=saver.saver_def if saver else None
            )
        self._summary_writer.add_event(
            tf.compat.v1.Event(wall_time=time.time(), graph_def=graph_def.SerializeToString())
        )
        self._summary_writer.add_meta_graph(self._meta_graph)
        step = session.run(self._global_step_tensor)
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def _save(self, session: Any, step: int) -> bool:
        """Write one checkpoint; return whether a listener wants training to stop."""
        for listener in self._listeners:
            listener.before_save(session, step)
        path = self._get_saver().save(session, self._save_path, global_step=step, write_meta_graph=False)
        if self._save_graph_def:
            with tf.io.gfile.GFile(f"{path}.meta", "wb") as file:
                file.write(self._meta_graph.SerializeToString())
        log.info("checkpoint_saved", extra={"step": int(step), "path": path})
        status = tf.compat.v1.SessionLog(
            status=tf.compat.v1.SessionLog.CHECKPOINT, checkpoint_path=self._save_path
        )
        self._summary_writer.add_session_log(status, step)
        # Every listener is told, whatever the others answer.
        answers = [listener.after_save(session, step) for listener in self._listeners]
        return any(answers)
