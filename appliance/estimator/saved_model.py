"""Writing a SavedModel that TensorFlow Serving loads: graph, variables, signatures, assets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils import export_utils

from appliance.estimator.checkpoints import restoring
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys

BuildModel = Callable[[Any, Any, str], EstimatorSpec]
"""Builds the model in the default graph from (features, labels, mode)."""

_TAGS = {
    ModeKeys.PREDICT: tf.saved_model.SERVING,
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
}
_TRAIN_OP_COLLECTION = "saved_model_train_op"


class Exporter:
    """Writes the graphs of several modes into one SavedModel, with the variables of one checkpoint.

    Args:
        build_model: builds the model of a mode.
        checkpoint_path: the checkpoint whose variables are exported.
        session_config: options of the sessions.
    """

    def __init__(self, build_model: BuildModel, checkpoint_path: str, session_config: Any) -> None:
        self._build_model = build_model
        self._checkpoint_path = checkpoint_path
        self._session_config = session_config

    def export(
        self,
        base: str,
        receiver_fns: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
    ) -> bytes:
        """Write `<base>/<seconds since the epoch>/`, whole or not at all, and return its path.

        Args:
            base: folder of all versions.
            receiver_fns: for each mode its input receiver function.
            assets_extra: destination below `assets.extra/` to the file that is copied there.
            as_text: whether to write saved_model.pbtxt in place of saved_model.pb.

        Raises:
            ValueError: there is no receiver function, or an unknown mode.
            CheckpointMismatch: the checkpoint lacks a variable of a mode, or has it in another shape.
        """
        unknown = sorted(set(receiver_fns) - set(_TAGS))
        if unknown or not receiver_fns:
            given = unknown or "none"
            raise ValueError(f"Give input receiver functions for some of {list(_TAGS)}. Given: {given}")
        final = export_utils.get_timestamped_export_dir(base)
        # Two processes may export in the same second. Serving passes over names that are no numbers.
        temporary = export_utils.get_temp_export_dir(final) + f"-{uuid.uuid4().hex}".encode()
        try:
            self._write(temporary, receiver_fns, as_text)
            _copy_assets(temporary, assets_extra or {})
            return _publish(temporary, final, base)
        finally:
            if tf.io.gfile.exists(temporary):
                tf.io.gfile.rmtree(temporary)

    def _write(self, folder: bytes, receiver_fns: Mapping[str, Callable[[], Any]], as_text: bool) -> None:
        builder = tf.compat.v1.saved_model.builder.SavedModelBuilder(folder)
        with_variables = True
        for mode in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            if mode in receiver_fns:
                self._add_graph(builder, mode, receiver_fns[mode], with_variables)
                with_variables = False
        builder.save(as_text)

    def _add_graph(
        self, builder: Any, mode: str, receiver_fn: Callable[[], Any], with_variables: bool
    ) -> None:
        with tf.Graph().as_default():
            tf.compat.v1.train.create_global_step()
            receiver = receiver_fn()
            spec = self._build_model(receiver.features, getattr(receiver, "labels", None), mode)
            signatures = _signatures(receiver, spec, mode)
            local_init = spec.scaffold.local_init_op
            if local_init is None:
                local_init = tf.compat.v1.train.Scaffold.default_local_init_op()
            saver = spec.scaffold.saver or tf.compat.v1.train.Saver(sharded=True, allow_empty=True)
            if spec.train_op is not None:
                tf.compat.v1.add_to_collection(_TRAIN_OP_COLLECTION, spec.train_op)
            with tf.compat.v1.Session(config=self._session_config) as session:
                with restoring(self._checkpoint_path, own_saver=spec.scaffold.saver is not None):
                    saver.restore(session, self._checkpoint_path)
                options = {
                    "signature_def_map": signatures,
                    "assets_collection": tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS),
                    "main_op": local_init,
                    "saver": saver,
                    "strip_default_attrs": True,
                }
                if with_variables:
                    builder.add_meta_graph_and_variables(session, [_TAGS[mode]], **options)
                else:
                    builder.add_meta_graph([_TAGS[mode]], **options)


def _signatures(receiver: Any, spec: EstimatorSpec, mode: str) -> dict[str, Any]:
    outputs = export_utils.export_outputs_for_mode(
        mode,
        serving_export_outputs=spec.export_outputs,
        predictions=spec.predictions,
        loss=spec.loss,
        metrics=spec.eval_metric_ops,
    )
    return export_utils.build_all_signature_defs(
        receiver.receiver_tensors,
        outputs,
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=mode == ModeKeys.PREDICT,
    )


def _copy_assets(folder: bytes, assets_extra: Mapping[str, str]) -> None:
    for destination, source in assets_extra.items():
        target = os.path.join(os.fsdecode(folder), "assets.extra", destination)
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(source, target)


def _publish(temporary: bytes, final: bytes, base: str) -> bytes:
    """Rename the finished folder into place; when another process took the name, under a later one."""
    while True:
        try:
            tf.io.gfile.rename(temporary, final)
        except (tf.errors.AlreadyExistsError, tf.errors.FailedPreconditionError):
            final = export_utils.get_timestamped_export_dir(base)
        else:
            return final
