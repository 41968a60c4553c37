"""Serving input receivers and how to build the usual ones; the kinds of model output that can be served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.saved_model.model_utils import export_output, export_utils

ExportOutput = export_output.ExportOutput
ClassificationOutput = export_output.ClassificationOutput
RegressionOutput = export_output.RegressionOutput
PredictOutput = export_output.PredictOutput
EvalOutput = export_output.EvalOutput
TrainOutput = export_output.TrainOutput

_SINGLE_NAMES = {
    "feature": export_utils.SINGLE_FEATURE_DEFAULT_NAME,
    "label": export_utils.SINGLE_LABEL_DEFAULT_NAME,
    "receiver_tensor": export_utils.SINGLE_RECEIVER_DEFAULT_NAME,
    "receiver_tensors_alternative": export_utils.SINGLE_RECEIVER_DEFAULT_NAME,
}


def _check_tensor(tensor: Any, field: str, name: Any = None) -> None:
    if not isinstance(tensor, tf.Tensor | tf.sparse.SparseTensor | tf.RaggedTensor):
        label = field if name is None else f"{field} {name}"
        raise ValueError(f"{label} must be a Tensor, SparseTensor, or RaggedTensor. Given: {tensor!r}")


def _named_tensors(tensors: Any, field: str, integer_keys: bool = False) -> dict[Any, Any]:
    """Return `tensors` as a dict, a single one under its default name, after checking keys and values."""
    if tensors is None:
        raise ValueError(f"{field}s must be defined. Given: None")
    named = tensors if isinstance(tensors, dict) else {_SINGLE_NAMES[field]: tensors}
    for name, tensor in named.items():
        if not isinstance(name, str) and not (integer_keys and isinstance(name, int)):
            expected = "strings or ints" if integer_keys else "strings"
            raise ValueError(f"{field} keys must be {expected}: {name!r}.")
        _check_tensor(tensor, field, name)
    return named


def _named_alternatives(alternatives: Any) -> dict[str, dict[str, Any]] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, dict):
        raise ValueError(f"receiver_tensors_alternatives must be a dict: {alternatives!r}.")
    return {
        name: _named_tensors(tensors, "receiver_tensors_alternative")
        for name, tensors in alternatives.items()
    }


class _Receiver(NamedTuple):
    """The fields of a serving input receiver, before validation."""

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: Any


class ServingInputReceiver(_Receiver):
    """What a `serving_input_receiver_fn` returns: where requests are fed, and the features the model gets.

    Fields:
        features: a Tensor, SparseTensor or RaggedTensor, or a dict of them under string or int keys. A single
            one is wrapped as `{"feature": tensor}`.
        receiver_tensors: the same for the tensors that are fed, with string keys; a single one becomes
            `{"input": tensor}`.
        receiver_tensors_alternatives: dict of name to further groups of receiver tensors; each adds
            signatures.

    Raises:
        ValueError: a field is missing, or a key or value has the wrong type.

    Source: `tf.estimator.export.ServingInputReceiver`.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        """Check and wrap the fields."""
        return super().__new__(
            cls,
            _named_tensors(features, "feature", integer_keys=True),
            _named_tensors(receiver_tensors, "receiver_tensor"),
            _named_alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_Receiver):
    """A serving input receiver whose model_fn gets one bare tensor in place of a dict of features.

    Fields and errors as in `ServingInputReceiver`; `features` must be a single Tensor, SparseTensor or
    RaggedTensor.

    Source: `tf.estimator.export.TensorServingInputReceiver`.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        """Check and wrap the fields, but for the features."""
        if features is None:
            raise ValueError("features must be defined. Given: None")
        _check_tensor(features, "feature")
        return super().__new__(
            cls,
            features,
            _named_tensors(receiver_tensors, "receiver_tensor"),
            _named_alternatives(receiver_tensors_alternatives),
        )


class _SupervisedReceiver(NamedTuple):
    """The fields of a supervised input receiver, before validation."""

    features: Any
    labels: Any
    receiver_tensors: Any


class SupervisedInputReceiver(_SupervisedReceiver):
    """What an input receiver function returns when a train or eval graph is exported.

    Fields:
        features, labels: a tensor or a dict of tensors, given to the model_fn as they are.
        receiver_tensors: the tensors that are fed, under string keys.

    Raises:
        ValueError: a field is missing, or a key or value has the wrong type.
    """

    __slots__ = ()

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> SupervisedInputReceiver:
        """Check the fields."""
        _named_tensors(features, "feature", integer_keys=True)
        _named_tensors(labels, "label", integer_keys=True)
        return super().__new__(cls, features, labels, _named_tensors(receiver_tensors, "receiver_tensor"))


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a serving_input_receiver_fn that parses serialised `tf.train.Example` protos.

    Args:
        feature_spec: dict of feature name to `tf.io.FixedLenFeature`, `VarLenFeature` and the like.
        default_batch_size: the number of examples of every request; any number when None.

    Source: `tf.estimator.export.build_parsing_serving_input_receiver_fn`.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.compat.v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        features = tf.io.parse_example(examples, dict(feature_spec), name="ParseExample")
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a serving_input_receiver_fn that is fed the features themselves.

    Args:
        features: dict of name to a tensor, whose dtype and shape (but for the batch) the fed one must have.
        default_batch_size: the number of rows of every request; any number when None.

    Source: `tf.estimator.export.build_raw_serving_input_receiver_fn`.
    """
    wanted = _dtypes_and_shapes(features)

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = _placeholders(wanted, default_batch_size)
        return ServingInputReceiver(dict(fed), fed)

    return serving_input_receiver_fn


def _dtypes_and_shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what is to be fed, without holding on to the tensors or their graph."""
    return {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in tensors.items()}


def _placeholders(wanted: Mapping[str, tuple[Any, Any]], batch_size: int | None) -> dict[str, Any]:
    rows = tf.TensorShape([batch_size])
    return {
        name: tf.compat.v1.placeholder(dtype, rows.concatenate(shape), name=_scope_name(name))
        for name, (dtype, shape) in wanted.items()
    }


def _scope_name(name: str) -> str:
    """Return `name` with what TensorFlow does not allow in the name of an operation replaced."""
    cleaned = "".join(
        character if character.isascii() and (character.isalnum() or character in "_./-") else "_"
        for character in name
    )
    return cleaned if cleaned[:1].isalnum() else f"feature{cleaned}"


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: Callable[..., Any], **input_fn_args: Any
) -> Callable[[], SupervisedInputReceiver]:
    """Return an input receiver function for train or eval graphs, shaped like what `input_fn` gives.

    `input_fn` is called once in a graph of its own to learn dtypes and shapes; none of its data is used.

    Source: `tf.estimator.experimental.build_raw_supervised_input_receiver_fn`.
    """
    with tf.Graph().as_default():
        data = input_fn(**input_fn_args)
        spec = (
            data.element_spec if isinstance(data, tf.data.Dataset) else tf.nest.map_structure(_spec_of, data)
        )
    features, labels = spec
    return build_raw_supervised_input_receiver_fn(features, labels)


def _spec_of(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Return an input receiver function for train or eval graphs that is fed features and labels themselves.

    Args:
        features, labels: a tensor (or TensorSpec), or a dict of them.
        default_batch_size: the number of rows of every request; any number when None.

    Raises:
        ValueError: a feature and a label have the same name.

    Source: `tf.estimator.experimental.build_raw_supervised_input_receiver_fn`.
    """
    named_features = (
        features if isinstance(features, Mapping) else {_SINGLE_NAMES["receiver_tensor"]: features}
    )
    named_labels = labels if isinstance(labels, Mapping) else {_SINGLE_NAMES["label"]: labels}
    common = sorted(set(named_features) & set(named_labels))
    if common:
        raise ValueError(f"features and labels must have different names. In both: {common}")
    wanted = _dtypes_and_shapes({**named_features, **named_labels})

    def input_receiver_fn() -> SupervisedInputReceiver:
        fed = _placeholders(wanted, default_batch_size)
        return SupervisedInputReceiver(
            _like(features, named_features, fed), _like(labels, named_labels, fed), fed
        )

    return input_receiver_fn


def _like(given: Any, named: Mapping[str, Any], fed: Mapping[str, Any]) -> Any:
    """Return the fed tensors of `named`, as a dict when `given` was one, else the only one."""
    chosen = {name: fed[name] for name in named}
    return chosen if isinstance(given, Mapping) else next(iter(chosen.values()))
