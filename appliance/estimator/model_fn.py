"""What a `model_fn` takes and returns: the modes, the EstimatorSpec and its rules."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.saved_model.model_utils import export_utils

from appliance.estimator.arguments import argument_names
from appliance.estimator.keras_layers import assignments, keras_in_graph, pending_updates

log = logging.getLogger("appliance.estimator")

LOSS_METRIC_KEY = "loss"
MODEL_FN_ARGUMENTS = frozenset({"features", "labels", "mode", "params", "config", "self"})


class ModeKeys:
    """The three ways to build a model: `TRAIN`, `EVAL`, `PREDICT` (source: `tf.estimator.ModeKeys`)."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _Fields(NamedTuple):
    """The fields of an EstimatorSpec, before validation."""

    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Any
    export_outputs: Any
    training_chief_hooks: Any
    training_hooks: Any
    scaffold: Any
    evaluation_hooks: Any
    prediction_hooks: Any


class EstimatorSpec(_Fields):
    """The model that a `model_fn` built for one mode: an immutable, validated tuple.

    Fields:
        mode: one of `ModeKeys`.
        predictions: a Tensor or a dict of Tensors; required to predict. `{}` when not given.
        loss: a Tensor of one element; required to train and to evaluate. Reshaped to a scalar.
        train_op: an operation or Tensor; required to train. It must add one to the global step.
        eval_metric_ops: dict of name to a (value, update) pair or a Keras metric that has been updated. Keras
            metrics become pairs when a graph is being built.
        export_outputs: dict of signature name to ExportOutput; completed with the default signature to
            predict.
        training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: SessionRunHooks, kept as
            tuples.
        scaffold: a `tf.compat.v1.train.Scaffold`; a plain one when not given.

    Raises:
        ValueError: a required field is missing, or a tensor comes from another graph.
        TypeError: a field has the wrong type.

    Source: `tf.estimator.EstimatorSpec`.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Iterable[Any] | None = None,
        training_hooks: Iterable[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Iterable[Any] | None = None,
        prediction_hooks: Iterable[Any] | None = None,
    ) -> EstimatorSpec:
        """Check every field and return the spec."""
        predictions = _checked_predictions(predictions, mode)
        return super().__new__(
            cls,
            mode=mode,
            train_op=_checked_train_op(train_op, mode),
            loss=_checked_loss(loss, mode),
            predictions=predictions,
            export_outputs=_checked_export_outputs(export_outputs, predictions, mode),
            training_hooks=_checked_hooks(training_hooks),
            evaluation_hooks=_checked_hooks(evaluation_hooks),
            prediction_hooks=_checked_hooks(prediction_hooks),
            training_chief_hooks=_checked_hooks(training_chief_hooks),
            eval_metric_ops=_checked_metrics(eval_metric_ops),
            scaffold=_checked_scaffold(scaffold),
        )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """Return a spec with some fields changed, validated again; the mode cannot change."""
        if changes.get("mode", self.mode) != self.mode:
            raise ValueError(f"mode of EstimatorSpec cannot be changed. Given: {changes['mode']!r}")
        return EstimatorSpec(**{**self._asdict(), **changes})


def _foreign(name: str, given: Any) -> ValueError:
    return ValueError(
        f"{name} with {given} must be from the default graph. It was made outside the graph of this call: "
        "build every tensor inside the most recent call of model_fn, and keep none between calls."
    )


def _is_here(value: Any) -> bool:
    return tf.executing_eagerly() or value.graph is tf.compat.v1.get_default_graph()


def _checked_train_op(train_op: Any, mode: str) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op. EstimatorSpec needs one to train.")
        return None
    if not (isinstance(train_op, tf.Operation | tf.Variable) or tf.is_tensor(train_op)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op}")
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not _is_here(train_op):
        raise _foreign("train_op", train_op.name)
    return train_op


def _checked_loss(loss: Any, mode: str) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss. EstimatorSpec needs one to train and to evaluate.")
        return None
    if not tf.is_tensor(loss):
        raise TypeError(f"loss must be Tensor, given: {loss}")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}")
    if not _is_here(loss):
        raise _foreign("loss", loss.name)
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def _checked_predictions(predictions: Any, mode: str) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions. EstimatorSpec needs them to predict.")
        return {}
    entries = predictions if isinstance(predictions, dict) else {None: predictions}
    for key, value in entries.items():
        name = "predictions" if key is None else f"predictions[{key}]"
        if not tf.is_tensor(value):
            raise TypeError(f"{name} must be Tensor, given: {value}")
        if not _is_here(value):
            raise _foreign(name, value.name)
    return predictions


def _checked_export_outputs(export_outputs: Any, predictions: Any, mode: str) -> Any:
    if mode != ModeKeys.PREDICT:
        return export_outputs
    # TensorFlow adds the default signature to the dict that it is given: the caller's own stays as it was.
    given = dict(export_outputs) if isinstance(export_outputs, Mapping) else export_outputs
    return export_utils.get_export_outputs(given, predictions)


def _checked_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    checked = tuple(hooks or ())
    for hook in checked:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"All hooks must be SessionRunHook instances, given: {hook}")
    return checked


def _checked_scaffold(scaffold: Any) -> Any:
    scaffold = scaffold if scaffold is not None else tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.compat.v1.train.Scaffold. Given: {scaffold}")
    return scaffold


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"eval_metric_ops must be a dict, given: {metrics}")
    return {key: _checked_metric(key, value) for key, value in metrics.items()}


def _checked_metric(key: str, metric: Any) -> Any:
    if _is_keras_metric(metric):
        if tf.executing_eagerly():
            return metric
        metric = _keras_metric_pair(metric)
    if not isinstance(metric, tuple) or len(metric) != 2:
        raise TypeError(
            "Values of eval_metric_ops must be (metric_value, update_op) tuples, or Keras metrics, "
            f"given: {metric} for key: {key}"
        )
    for part in tf.nest.flatten(metric):
        if not _is_here(part):
            raise _foreign("eval_metric_ops", f"{key}: {part.name}")
    return metric


def _is_keras_metric(value: Any) -> bool:
    # TensorFlow does without Keras; only where it has been imported can there be one of its metrics.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.metrics.Metric)


def _keras_metric_pair(metric: Any) -> tuple[Any, Any]:
    """Return (value, update) of a Keras metric that was updated in this graph.

    Keras 3 metrics do not keep their update operations; they are the assignments to the metric's variables,
    other than the one that initialises each.

    Raises:
        ValueError: `update_state` was not called in this graph.
    """
    graph = tf.compat.v1.get_default_graph()
    variables = [getattr(variable, "value", variable) for variable in metric.variables]
    if any(variable.graph is not graph for variable in variables):
        raise _foreign("eval_metric_ops", metric.name)
    updates = [update for variable in variables for update in assignments(variable) if _is_of_replica(update)]
    if not updates:
        raise ValueError(
            f'Please call update_state(...) on the "{metric.name}" metric before giving it to EstimatorSpec.'
        )
    _make_local(variables)
    return tf.convert_to_tensor(metric.result()), tf.group(*updates)


def _is_of_replica(operation: Any) -> bool:
    """Return whether the operation is of the replica that is being built, where there are several."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return True
    # TensorFlow builds each but the first in a scope of its own.
    here = re.match(r"replica_\d+/", f"{operation.graph.get_name_scope()}/")
    there = re.match(r"replica_\d+/", operation.name)
    return (here and here[0]) == (there and there[0])


def _make_local(variables: Iterable[Any]) -> None:
    """Move metric variables out of the checkpoint, to those that every session starts afresh."""
    keys = tf.compat.v1.GraphKeys
    saved = tf.compat.v1.get_collection_ref(keys.GLOBAL_VARIABLES)
    trained = tf.compat.v1.get_collection_ref(keys.TRAINABLE_VARIABLES)
    for variable in variables:
        for collection in (saved, trained):
            collection[:] = [other for other in collection if other is not variable]
        for key in (keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES):
            if not any(other is variable for other in tf.compat.v1.get_collection(key)):
                tf.compat.v1.add_to_collection(key, variable)


def check_model_fn(model_fn: Callable[..., Any] | None, params: Any) -> None:
    """Check the arguments that `model_fn` declares.

    Raises:
        ValueError: `model_fn` is missing, lacks `features`, names an unknown argument, or cannot take the
            given params.
    """
    if model_fn is None:
        raise ValueError("model_fn must be provided to Estimator. Given: None")
    names = set(argument_names(model_fn))
    if "features" not in names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if params is not None and "params" not in names:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument, "
            f"but params ({params}) is passed to Estimator."
        )
    if params is None and "params" in names:
        log.warning("model_fn_without_params", extra={"model_fn": str(model_fn)})
    unknown = sorted(names - MODEL_FN_ARGUMENTS)
    if unknown:
        raise ValueError(
            f"model_fn ({model_fn}) has following not expected args: {unknown}. "
            "It may take features, labels, mode, params and config."
        )


def call_model_fn(
    model_fn: Callable[..., Any], features: Any, labels: Any, mode: str, params: Any, config: Any
) -> EstimatorSpec:
    """Call `model_fn` with the arguments it declares, and check what it returns.

    In training, what the Keras layers in it assign is done at each step, with the train_op.

    Raises:
        ValueError: there are labels that `model_fn` cannot take, the result is not an EstimatorSpec, or it
            reports a metric under a name that the framework owns.
    """
    names = argument_names(model_fn)
    arguments: dict[str, Any] = {"features": features}
    if "labels" in names:
        arguments["labels"] = labels
    elif labels is not None:
        raise ValueError(
            "model_fn does not take labels, but input_fn returns labels. Add a `labels` argument to it."
        )
    for name, value in (("mode", mode), ("params", params), ("config", config)):
        if name in names:
            arguments[name] = value
    compiled = mode == ModeKeys.TRAIN and config is not None and config.jit_compile
    with keras_in_graph() as variables, _compilation(compiled):
        spec = model_fn(**arguments)
    if not isinstance(spec, EstimatorSpec):
        raise ValueError(f"model_fn should return an EstimatorSpec. Given: {spec!r}")
    if mode == ModeKeys.EVAL:
        check_metric_names(spec.eval_metric_ops)
    if mode == ModeKeys.TRAIN and (updates := pending_updates(variables)):
        return spec._replace(train_op=tf.group(spec.train_op, *updates))
    return spec


def _compilation(wanted: bool) -> contextlib.AbstractContextManager[None]:
    # TensorFlow's own scope marks every operation, also as not to be compiled.
    return tf.xla.experimental.jit_scope(compile_ops=True) if wanted else contextlib.nullcontext()


def check_metric_names(metrics: Iterable[str]) -> None:
    """Refuse metrics named `loss` or `global_step`: `evaluate` adds both itself.

    Raises:
        ValueError: one of them is there.
    """
    for name in (LOSS_METRIC_KEY, tf.compat.v1.GraphKeys.GLOBAL_STEP):
        if name in metrics:
            raise ValueError(
                f'Metric with name "{name}" is not allowed, because Estimator adds one by itself. Rename it.'
            )
