"""What the heads for classes share: the names of classes, as predictions and as export outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.export import ClassificationOutput


def wanted_keys(keys: Sequence[Any] | None, valid: Sequence[Any]) -> Sequence[Any]:
    """Return the prediction keys to compute.

    Raises:
        ValueError: one of `keys` is not valid.
    """
    for key in keys or ():
        if key not in valid:
            raise ValueError(
                f"Prediction key must be in PredictionKeys, given: {key}. Valid prediction keys include "
                f"{list(valid)}."
            )
    return keys or valid


def class_names(n_classes: int, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Return the names of all classes, bytes `[n_classes]`: the vocabulary, or the ids as text."""
    return tf.constant(list(vocabulary or map(str, range(n_classes))), tf.string)


def checked_class_weights(
    class_weight: Mapping[Any, float] | None, n_classes: int, vocabulary: Sequence[str] | None
) -> tuple[float, ...] | None:
    """Return the weight of each class, by class id; 1 where none is given. None when there are no weights.

    Raises:
        ValueError: a key is no class, or a weight is negative.
    """
    if class_weight is None:
        return None
    labels: list[Any] = list(range(n_classes)) if vocabulary is None else list(vocabulary)
    unknown = [label for label in class_weight if label not in labels]
    if unknown:
        raise ValueError(
            f"class_weight has weights for {unknown}, which are no labels. The labels: {labels}."
        )
    negative = {label: weight for label, weight in class_weight.items() if weight < 0}
    if negative:
        raise ValueError(f"class_weight must not be negative. Given: {negative}")
    return tuple(float(class_weight.get(label, 1.0)) for label in labels)


def class_predictions(
    scores: tf.Tensor, keys: Sequence[str], n_classes: int, vocabulary: Sequence[str] | None
) -> dict[str, tf.Tensor]:
    """Return those of `class_ids`, `classes`, `all_class_ids` and `all_classes` that are among `keys`.

    Args:
        scores: logits `[D0, ..., DN, n_classes]`; the greatest wins.
        keys: the prediction keys.
        n_classes: the number of classes.
        vocabulary: the names of the classes, or None.
    """
    predictions = {}
    if "class_ids" in keys or "classes" in keys:
        ids = tf.expand_dims(tf.argmax(scores, axis=-1), -1)
        predictions["class_ids"] = ids
        predictions["classes"] = tf.gather(class_names(n_classes, vocabulary), ids)
    if "all_class_ids" in keys:
        predictions["all_class_ids"] = _for_each_example(tf.range(n_classes), scores)
    if "all_classes" in keys:
        predictions["all_classes"] = all_classes(scores, n_classes, vocabulary)
    return {key: value for key, value in predictions.items() if key in keys}


def _for_each_example(row: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    return tf.tile(tf.expand_dims(row, 0), tf.stack([tf.shape(scores)[0], 1]))


def all_classes(scores: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Return the names of all classes for each example, bytes `[batch, n_classes]`."""
    return _for_each_example(class_names(n_classes, vocabulary), scores)


def at_threshold(key: str, threshold: float) -> str:
    """Return the key of a metric of the decisions at a threshold."""
    return f"{key}/positive_threshold_{threshold:g}"


def classification_output(
    probabilities: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None
) -> ClassificationOutput:
    """Return the export output with `classes` (bytes) and `scores` (float32), both `[batch, n_classes]`."""
    names = all_classes(probabilities, n_classes, vocabulary)
    return ClassificationOutput(scores=probabilities, classes=names)


def vocabulary_ids(labels: tf.Tensor, vocabulary: Sequence[str]) -> tf.Tensor:
    """Return the positions of string labels in the vocabulary, int64; -1 for others.

    Raises:
        ValueError: the labels are no strings.
    """
    if labels.dtype != tf.string:
        raise ValueError(
            f"Labels dtype should be string if there is a vocabulary. Instead got {labels.dtype.name}. "
            f"Return the labels as strings, among {list(vocabulary)}, or leave out label_vocabulary."
        )
    words = tf.constant(list(vocabulary), tf.string)
    if len(vocabulary) > 64:
        ids = tf.constant(list(range(len(vocabulary))), tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, ids), -1)
        return table.lookup(labels)
    # Comparing with each of a few words needs no table, which a graph would have to initialise and eager code
    # to keep.
    matches = tf.equal(tf.expand_dims(labels, -1), words)
    found = tf.reduce_any(matches, axis=-1)
    return tf.where(found, tf.argmax(tf.cast(matches, tf.int8), axis=-1), tf.constant(-1, tf.int64))
