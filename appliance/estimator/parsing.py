"""Specs for `tf.io.parse_example` that hold the features of columns, the label and the weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc


def classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Return the parsing spec for the training data of a classifier.

    Args:
        feature_columns: the columns of the model.
        label_key: the name of the label in the `tf.train.Example`s.
        label_dtype: int64, or string for labels of a vocabulary.
        label_default: the label of examples that have none; None makes them an error.
        weight_column: the name, or a numeric column, of the examples' weights.

    Returns:
        dict of feature name to `FixedLenFeature` or `VarLenFeature`.

    Raises:
        ValueError: the label or the weight is also a feature, or `weight_column` is of the wrong type.

    Source: `tf.estimator.classifier_parse_example_spec`.
    """
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _with_label_and_weight(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Return the parsing spec for the training data of a regressor, whose label has `label_dimension` values.

    The other arguments, the result and the errors are those of `classifier_parse_example_spec`.

    Source: `tf.estimator.regressor_parse_example_spec`.
    """
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _with_label_and_weight(feature_columns, label_key, label, weight_column)


def _with_label_and_weight(
    feature_columns: Iterable[Any], label_key: str, label: Any, weight_column: Any
) -> dict[str, Any]:
    if not isinstance(label_key, str):
        raise ValueError(f"label_key should be the name of the label; got {label_key!r}.")
    spec: dict[str, Any] = dict(fc.make_parse_example_spec_v2(list(feature_columns)))
    _add(spec, "label", label_key, label)
    if weight_column is None:
        return spec
    if isinstance(weight_column, str):
        weight_column = fc.numeric_column(weight_column)
    if not isinstance(weight_column, fc.NumericColumn):
        raise ValueError(
            "weight_column should be a name or an instance of tf.feature_column.numeric_column. Given type: "
            f"{type(weight_column).__name__} value: {weight_column}."
        )
    _add(spec, "weight_column", weight_column.key, weight_column.parse_example_spec[weight_column.key])
    return spec


def _add(spec: dict[str, Any], what: str, key: str, feature: Any) -> None:
    if key in spec:
        raise ValueError(
            f"{what} should not be used as feature. {what} key: {key!r}, features: {sorted(spec)}. Remove "
            "the column that reads it."
        )
    spec[key] = feature
