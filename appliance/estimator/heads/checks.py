"""Checks of labels, weights and logits: static where shapes are known, at run time elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

from appliance.estimator.arguments import argument_names

REDUCTIONS = ("auto", "sum", "sum_over_batch_size")
_MOST_VALUES = 1000
"""So many values of a tensor are told in an error: the wrong one may be any of a batch."""
_LOSS_FN_ARGUMENTS = {"labels", "logits", "features", "loss_reduction"}


def check_reduction(loss_reduction: str) -> str:
    """Return a loss reduction after checking it.

    Raises:
        ValueError: it is none of `REDUCTIONS`.
    """
    if loss_reduction not in REDUCTIONS:
        raise ValueError(f"Invalid loss_reduction: {loss_reduction!r}. Use one of {', '.join(REDUCTIONS)}.")
    return loss_reduction


def check_vocabulary(label_vocabulary: Any, n_classes: int) -> tuple[str, ...] | None:
    """Return a label vocabulary as a tuple after checking it.

    Raises:
        ValueError: it is not a list or tuple, has not `n_classes` entries, or has an entry twice.
    """
    if label_vocabulary is None:
        return None
    if not isinstance(label_vocabulary, list | tuple):
        raise ValueError(
            f"label_vocabulary should be a list or a tuple. Given type: {type(label_vocabulary).__name__}."
        )
    if not all(isinstance(word, str | bytes) for word in label_vocabulary):
        raise ValueError(
            f"label_vocabulary must hold strings; got {list(label_vocabulary)}. Class ids need none."
        )
    if len(label_vocabulary) != n_classes:
        raise ValueError(
            f"label_vocabulary must have one entry for each of the {n_classes} classes; it has "
            f"{len(label_vocabulary)}: {list(label_vocabulary)}."
        )
    twice = sorted({word for word in label_vocabulary if list(label_vocabulary).count(word) > 1})
    if twice:
        raise ValueError(
            f"label_vocabulary has {twice} more than once: {list(label_vocabulary)}. Give each class its own "
            "label."
        )
    return tuple(label_vocabulary)


def check_thresholds(thresholds: Iterable[float] | None) -> tuple[float, ...]:
    """Return decision thresholds as a tuple after checking them.

    Raises:
        ValueError: one is not in (0, 1).
    """
    checked_thresholds = tuple(thresholds or ())
    outside = [threshold for threshold in checked_thresholds if not 0.0 < threshold < 1.0]
    if outside:
        raise ValueError(f"thresholds not in (0, 1): {outside}.")
    return checked_thresholds


def check_loss_fn(loss_fn: Callable[..., Any] | None) -> None:
    """Check the arguments of a user's loss function.

    Raises:
        ValueError: `labels` or `logits` is not among them, or there are unknown ones.
    """
    if loss_fn is None:
        return
    names = argument_names(loss_fn)
    for required in ("labels", "logits"):
        if required not in names:
            raise ValueError(f"loss_fn must contain argument: {required}. Given arguments: {tuple(names)}")
    unknown = sorted(set(names) - _LOSS_FN_ARGUMENTS)
    if unknown:
        raise ValueError(f"loss_fn has unexpected args: {unknown}; known are {sorted(_LOSS_FN_ARGUMENTS)}.")


def checked(tensor: tf.Tensor, condition: tf.Tensor, message: str, *data: Any) -> tf.Tensor:
    """Return `tensor`, computed only if `condition` holds; otherwise fail with `message` and the values of
    `data`.

    Raises:
        ValueError: at once in eager mode.
        tf.errors.InvalidArgumentError: at run time in a graph.
    """
    if tf.executing_eagerly():
        if not bool(condition):
            raise ValueError(
                message + "".join(part if isinstance(part, str) else str(part.numpy()) for part in data)
            )
        return tensor
    # The plain operation: tf.debugging.Assert would add a condition and a branch to every step.
    check = tf.raw_ops.Assert(
        condition=condition,
        data=[tf.constant(message), *map(tf.convert_to_tensor, data)],
        summarize=_MOST_VALUES,
    )
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


def check_logits(logits: Any, dimension: int) -> tf.Tensor:
    """Return logits as float32.

    Raises:
        ValueError: the shape is not `[D0, ..., DN, dimension]`, N >= 0.
    """
    logits = tf.cast(tf.convert_to_tensor(logits), tf.float32)
    rank = logits.shape.rank
    if (rank is not None and rank < 2) or (rank is not None and logits.shape[-1] not in (None, dimension)):
        raise ValueError(
            f"logits shape must be [D0, D1, ... DN, logits_dimension] with logits_dimension={dimension}, got "
            f"{logits.shape}."
        )
    if rank is None or logits.shape[-1] is None:
        last = tf.shape(logits)[-1]
        return checked(
            logits, tf.equal(last, dimension), f"logits shape must end in {dimension}, got: ", last
        )
    return logits


def check_labels(labels: Any, logits: tf.Tensor, dimension: int) -> tf.Tensor:
    """Return labels in the shape of `logits`, but for the last dimension, which is `dimension`.

    Labels of shape `[D0, ..., DN]` become `[D0, ..., DN, 1]` when `dimension` is 1.

    Raises:
        ValueError: there are none, they are sparse, or their static shape does not fit.
        tf.errors.InvalidArgumentError: at run time, the shape does not fit.
    """
    if labels is None:
        raise ValueError(
            "You must provide a labels Tensor. Given: None. Check that your data has the label and that "
            "your input_fn returns (features, labels)."
        )
    if isinstance(labels, tf.SparseTensor):
        raise ValueError(
            "SparseTensor labels are not supported. Labels must be a Tensor of shape [batch_size, "
            f"{dimension}]; use tf.sparse.to_dense in the input_fn, after checking that every example has a "
            "label."
        )
    if isinstance(labels, Mapping):
        raise ValueError(
            f"Labels must be a Tensor; got a dict with the keys {sorted(map(str, labels))}. Return the one "
            "Tensor that this head learns from the input_fn."
        )
    labels = tf.convert_to_tensor(labels)
    rank, logits_rank = labels.shape.rank, logits.shape.rank
    if dimension == 1 and rank is not None and logits_rank is not None and rank == logits_rank - 1:
        labels = tf.expand_dims(labels, -1)
        rank += 1
    expected = logits.shape[:-1].concatenate(dimension) if logits_rank is not None else tf.TensorShape(None)
    if rank is not None and rank >= 1 and labels.shape[-1] not in (None, dimension):
        raise ValueError(
            f"Mismatched label shape. Expected labels dimension={dimension}. Received {labels.shape[-1]} "
            f"(labels of shape {labels.shape} for logits of shape {logits.shape}). If your labels are "
            "one-hot, give class indices instead; otherwise check n_classes or label_dimension."
        )
    if not expected.is_compatible_with(labels.shape):
        raise ValueError(
            f"labels shape must be [D0, D1, ... DN, {dimension}]. expected_labels_shape: {expected}. "
            f"labels_shape: {labels.shape}. Check that the input_fn returns one label for each example."
        )
    if labels.shape.is_fully_defined() and expected.is_fully_defined():
        return labels
    expected_shape = tf.concat([tf.shape(logits)[:-1], [dimension]], axis=0)
    return _checked_shape(
        labels, [expected_shape], f"labels shape must be [D0, D1, ... DN, {dimension}].", "labels"
    )


def _checked_shape(tensor: tf.Tensor, allowed: Sequence[tf.Tensor], message: str, name: str) -> tf.Tensor:
    shape = tf.shape(tensor)
    # Static ranks agree by now, so that comparing the shapes cannot fail by itself.
    fits = tf.reduce_any(tf.stack([tf.reduce_all(tf.equal(shape, expected)) for expected in allowed]))
    if len(allowed) == 1:
        fits = tf.reduce_all(tf.equal(shape, allowed[0]))
    return checked(tensor, fits, f"{message} expected_{name}_shape: ", allowed[0], f" {name}_shape: ", shape)


_MORE_CLASSES = (
    "Raise n_classes, correct the labels, or add them to the label_vocabulary: a label that is not in it "
    "counts as -1."
)


def check_label_range(
    labels: tf.Tensor, n_classes: int, intro: str = "", remedy: str = _MORE_CLASSES
) -> tf.Tensor:
    """Return labels after checking `0 <= label <= n_classes - 1`; `intro` comes first in the message.

    Raises:
        ValueError: in eager mode, one is outside.
        tf.errors.InvalidArgumentError: in a graph, one is outside.
    """
    low, high = tf.cast(0, labels.dtype), tf.cast(n_classes - 1, labels.dtype)
    inside = tf.reduce_all(tf.equal(labels, tf.clip_by_value(labels, low, high)))
    message = (
        f"{intro}Labels must be >= 0 and <= n_classes - 1 = {n_classes - 1} (0 <= label, label < n_classes). "
        f"{remedy} Given: "
    )
    return checked(labels, inside, message, labels)


def example_weights(
    features: Mapping[str, Any] | None, weight_column: Any, logits: tf.Tensor, per_logit: bool = False
) -> tf.Tensor | None:
    """Return the weights of the examples as float32 `[D0, ..., DN, 1]`; None without a weight column.

    Args:
        features: dict of features, with the weights.
        weight_column: the name of the feature, or a numeric column, or None.
        logits: the logits, for the shape.
        per_logit: whether weights of the logits' whole shape are allowed.

    Raises:
        ValueError: the feature is missing, no number, or of a shape that does not fit.
        TypeError: `weight_column` is neither a name nor a numeric column.
    """
    if weight_column is None:
        return None
    if not isinstance(weight_column, str | fc.NumericColumn):
        raise TypeError(
            "Weight column must be either a string or NumericColumn. Given type: "
            f"{type(weight_column).__name__}."
        )
    key = weight_column if isinstance(weight_column, str) else weight_column.key
    if features is None or key not in features:
        known = sorted(map(str, features)) if features else []
        raise ValueError(
            f"The weight column {key!r} is not in the features: {known}. Return it from the input_fn beside "
            "the features."
        )
    weights = tf.convert_to_tensor(features[key])
    if isinstance(weight_column, fc.NumericColumn) and weight_column.normalizer_fn is not None:
        weights = weight_column.normalizer_fn(weights)
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise ValueError(
            f"Weight column {key!r} should be castable to float. Given dtype: {weights.dtype.name}."
        )
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank is not None and weights.shape.rank == (logits.shape.rank or 0) - 1:
        weights = tf.expand_dims(weights, -1)
    return _check_weights_shape(weights, logits, key, per_logit)


def _check_weights_shape(weights: tf.Tensor, logits: tf.Tensor, key: str, per_logit: bool) -> tf.Tensor:
    per_example = logits.shape[:-1].concatenate(1)
    allowed = [per_example, logits.shape] if per_logit else [per_example]
    message = (
        "weights shape must be [D0, D1, ... DN] or [D0, D1, ... DN, 1]"
        f"{' or [D0, D1, ... DN, logits_dimension]' if per_logit else ''} (weight column {key!r})."
    )
    if not any(shape.is_compatible_with(weights.shape) for shape in allowed):
        raise ValueError(f"{message} logits_shape: {logits.shape}. weights_shape: {weights.shape}.")
    if weights.shape.is_fully_defined() and logits.shape.is_fully_defined():
        return weights
    logits_shape = tf.shape(logits)
    expected = [tf.concat([logits_shape[:-1], [1]], axis=0)] + ([logits_shape] if per_logit else [])
    return _checked_shape(weights, expected, message, "weights")


def call_loss_fn(
    loss_fn: Callable[..., Any], labels: tf.Tensor, logits: tf.Tensor, features: Any, dimension: int
) -> tf.Tensor:
    """Return what a user's loss function says for each example, after checking the shape `[D0, ..., DN,
    dimension]`.

    Raises:
        ValueError: the static shape does not fit.
        tf.errors.InvalidArgumentError: at run time, the shape does not fit.
    """
    more = {"features": features} if "features" in argument_names(loss_fn) else {}
    losses = tf.convert_to_tensor(loss_fn(labels=labels, logits=logits, **more))
    expected = logits.shape[:-1].concatenate(dimension)
    if not expected.is_compatible_with(losses.shape):
        raise ValueError(
            f"loss_fn must return Tensor of shape [D0, D1, ... DN, {dimension}]. logits_shape: "
            f"{logits.shape}. loss_shape: {losses.shape}."
        )
    if losses.shape.is_fully_defined() and expected.is_fully_defined():
        return losses
    shape = tf.concat([tf.shape(logits)[:-1], [dimension]], axis=0)
    return _checked_shape(
        losses, [shape], f"loss_fn must return Tensor of shape [D0, D1, ... DN, {dimension}].", "loss"
    )
