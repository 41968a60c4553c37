"""Estimators from Keras 3 models, trained by the same engine as any other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils import export_utils

from appliance.estimator.eager_values import eagerly
from appliance.estimator.estimator import Estimator
from appliance.estimator.export import PredictOutput
from appliance.estimator.keras_losses import loss_shares, whole_loss
from appliance.estimator.keras_state import (
    GraphState,
    Names,
    build,
    model_variables,
    values_of,
)
from appliance.estimator.model_fn import LOSS_METRIC_KEY, EstimatorSpec, ModeKeys
from appliance.estimator.optimizers import minimize
from appliance.estimator.run_config import RunConfig

_WEIGHTED = frozenset({"features", "sample_weights"})
_UNNAMED_INPUT = ("keras_tensor", "input_layer")


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = None,
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, type] | None = None,
) -> Estimator:
    """Return an Estimator that trains, evaluates, predicts with and exports a Keras model.

    The model's weights are those before the first step; from then on the newest checkpoint of `model_dir` has
    them, by names that do not depend on what else the process has built (`dense/kernel`). The model itself
    stays as it is. Layers behave by mode: dropout and batch statistics in training only.

    The `input_fn` gives features under the names of the model's inputs (one array will do for one input) and
    labels as the model's `fit` takes them. `{"features": ..., "sample_weights": ...}` weights the examples.
    Predictions and signatures have the names of the model's outputs.

    Args:
        keras_model: a compiled `keras.Model`: sequential, functional or subclassed.
        keras_model_path: the file of a saved one, in its place.
        custom_objects: the classes and functions that loading it needs, by name.
        model_dir, config: as for `Estimator`.
        checkpoint_format: `checkpoint`, `saver` or None, for the sake of older programs: checkpoints are by
            name in any case.
        metric_names_map: Keras' metric name to the name to report.
        export_outputs: output name to the class of its signature, such as `export.RegressionOutput`.

    Raises:
        ValueError: not exactly one model is given, it is not compiled, or it has its own `train_step`.
        TypeError: the model is not a Keras 3 one.

    Source: `tf.keras.estimator.model_to_estimator`.
    """
    if (keras_model is None) == (keras_model_path is None):
        given = "neither" if keras_model is None else "both"
        raise ValueError(f"Either keras_model or keras_model_path needs to be provided. Given: {given}")
    if checkpoint_format not in (None, "checkpoint", "saver"):
        raise ValueError(
            f"checkpoint_format must be 'checkpoint' or 'saver'. Given: {checkpoint_format!r}. Leave it out: "
            "checkpoints are by variable name."
        )
    import keras

    if keras_model_path is not None:
        keras_model = keras.models.load_model(os.fspath(keras_model_path), custom_objects=custom_objects)
    _check_model(keras_model)
    model_fn = KerasModelFn(keras_model, metric_names_map or {}, export_outputs or {})
    return Estimator(model_fn, model_dir=model_dir, config=config)


def _check_model(model: Any) -> None:
    import keras

    if not isinstance(model, keras.Model):
        raise TypeError(
            f"keras_model must be a Keras 3 model (keras.Model). Given: {type(model).__module__}."
            f"{type(model).__name__}"
        )
    if not model.compiled or model.optimizer is None:
        raise ValueError(
            "The given keras model has not been compiled yet. Please compile the model with "
            "`model.compile(optimizer, loss)` before calling `model_to_estimator()`."
        )
    for name in ("train_step", "test_step"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(
                f"{type(model).__name__} overrides {name}, which works on eager variables. Override "
                "compute_loss or compute_metrics instead, or write a model_fn that calls the model."
            )


class KerasModelFn:
    """The model_fn of a Keras model.

    Args:
        model: a compiled model.
        metric_names: Keras' metric name to the name to report.
        export_outputs: output name to a class of ExportOutput.
    """

    def __init__(
        self, model: Any, metric_names: Mapping[str, str], export_outputs: Mapping[str, type]
    ) -> None:
        self._model = model
        self._metric_names = metric_names
        self._export_outputs = export_outputs
        self._names: Names | None = None
        self._initial: list[Any] = []
        if model.built:
            self._remember_weights()

    def _remember_weights(self) -> None:
        self._names = Names(self._model)
        self._initial = values_of(model_variables(self._model))

    def __call__(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        """Build the model in the default graph; see `Estimator`."""
        model = self._model
        features, weights = _without_weights(features)
        x = _inputs(model, features)
        _check_dtypes(model, x)
        if mode != ModeKeys.PREDICT and labels is None:
            raise ValueError(
                "The input_fn gave no labels. To train or evaluate, let it return (features, labels)."
            )
        build(model, x, None if mode == ModeKeys.PREDICT else labels, weights)
        if self._names is None:
            self._remember_weights()
        assert self._names is not None
        if mode == ModeKeys.EVAL:
            with eagerly():
                model.reset_metrics()
        state = GraphState(model, self._names.variables(model_variables(model)), self._initial, mode)
        # The losses include those that layers add in the call.
        shares = loss_shares() if mode == ModeKeys.TRAIN else contextlib.nullcontext()
        with state.scope() as scope, shares:
            training = {"training": mode == ModeKeys.TRAIN} if model._call_has_training_arg else {}
            outputs = model(x, **training)
            loss = None
            if mode != ModeKeys.PREDICT:
                loss = model._compute_loss(
                    x=x, y=labels, y_pred=outputs, sample_weight=weights, training=mode == ModeKeys.TRAIN
                )
            if mode == ModeKeys.EVAL:
                model.compute_metrics(x, labels, outputs, sample_weight=weights)
        predictions = self._named_outputs(outputs)
        return EstimatorSpec(
            mode,
            predictions=predictions,
            loss=whole_loss(loss) if mode == ModeKeys.TRAIN else loss,
            train_op=self._train_op(loss, state, scope) if mode == ModeKeys.TRAIN else None,
            eval_metric_ops=self._metrics(loss, state, scope) if mode == ModeKeys.EVAL else None,
            export_outputs=self._exports(predictions) if mode == ModeKeys.PREDICT else None,
            scaffold=tf.compat.v1.train.Scaffold(init_feed_dict=state.feeds),
        )

    def _train_op(self, loss: Any, state: GraphState, scope: Any) -> Any:
        # As in fit, variables that the loss does not depend on stay as they are. The loss is the replica's
        # share already.
        train_op = minimize(loss, self._model.optimizer, state.trainable, loss_reduction="sum")
        return tf.group(train_op, *state.updates(scope, loss))

    def _metrics(self, loss: Any, state: GraphState, scope: Any) -> dict[str, Any]:
        update = state.metric_updates(scope, loss)
        with state.scope():
            results = self._model.get_metrics_result()
        pairs = {}
        for name, value in results.items():
            if name != LOSS_METRIC_KEY:
                pairs[self._metric_name(name)] = (tf.convert_to_tensor(value), update)
        return pairs

    def _metric_name(self, name: str) -> str:
        assert self._names is not None
        for output in getattr(self._model, "output_names", None) or ():
            if name.startswith(f"{output}_"):
                name = self._names.layer(output) + name.removeprefix(output)
                break
        return self._metric_names.get(name, name)

    def _named_outputs(self, outputs: Any) -> dict[str, Any]:
        assert self._names is not None
        if isinstance(outputs, Mapping):
            return dict(outputs)
        flat = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        functional = getattr(self._model, "_functional", self._model)  # Of a sequential model, its layers.
        names: Sequence[str] | None = getattr(functional, "output_names", None)
        if names is None or len(names) != len(flat):
            names = ["output"] if len(flat) == 1 else [f"output_{i + 1}" for i in range(len(flat))]
            return dict(zip(names, flat, strict=True))
        return dict(zip(map(self._names.layer, names), flat, strict=True))

    def _exports(self, predictions: Mapping[str, Any]) -> dict[str, Any]:
        unknown = sorted(self._export_outputs.keys() - predictions.keys())
        if unknown:
            raise ValueError(
                f"export_outputs has {unknown}, which are no outputs of the model. Its outputs: "
                f"{sorted(predictions)}."
            )
        default = export_utils.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
        outputs: dict[str, Any] = {default: PredictOutput(dict(predictions))}
        return outputs | {name: kind(predictions[name]) for name, kind in self._export_outputs.items()}


def _without_weights(features: Any) -> tuple[Any, Any]:
    """Return (features, sample weights or None)."""
    if isinstance(features, Mapping) and features.keys() == _WEIGHTED:
        return features["features"], features["sample_weights"]
    return features, None


def _inputs(model: Any, features: Any) -> Any:
    """Return the features as the model's `call` takes them.

    Raises:
        ValueError: an input of the model is not among the features.
    """
    import keras

    if not isinstance(features, Mapping):
        return features
    structure = getattr(model, "_inputs_struct", None)
    if structure is None:
        sequential = isinstance(model, keras.Sequential) and len(features) == 1
        return next(iter(features.values())) if sequential else dict(features)
    inputs = tf.nest.flatten(structure)
    if len(inputs) == 1 and len(features) == 1 and inputs[0].name.startswith(_UNNAMED_INPUT):
        return next(iter(features.values()))
    if isinstance(structure, Mapping) and structure.keys() <= features.keys():
        return {name: features[name] for name in structure}
    missing = [tensor.name for tensor in inputs if tensor.name not in features]
    if missing:
        raise ValueError(
            f"The model has the inputs {[tensor.name for tensor in inputs]}; the input_fn gave the features "
            f"{sorted(features)}. Missing: {missing}. Name the features after the inputs."
        )
    return tf.nest.map_structure(lambda tensor: features[tensor.name], structure)


def _check_dtypes(model: Any, x: Any) -> None:
    """Check that strings are given where the model takes strings, and numbers where it takes numbers.

    Raises:
        ValueError: names the input that does not fit.
    """
    functional = getattr(model, "_functional", None) or model  # Of a sequential model, its layers.
    tensors = tf.nest.flatten(x)
    for wanted, given in zip(getattr(functional, "inputs", None) or [], tensors, strict=False):
        if (wanted.dtype == "string") != (given.dtype == tf.string):
            raise ValueError(
                f"The feature for the model's input {wanted.name!r} has dtype {given.dtype.name}; the input "
                f"takes {wanted.dtype}. Convert the feature in the input_fn, or give the model an input of "
                f"dtype {given.dtype.name}, and a layer such as keras.layers.StringLookup for strings."
            )
