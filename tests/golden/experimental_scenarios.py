"""Golden scenarios of `tf.estimator.experimental`: k-means, SDCA, recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.golden.data import Columns


def _kmeans(est: Any, **settings: Any) -> Any:
    # TensorFlow has it in compat.v1 only.
    kind = getattr(est.experimental, "KMeans", None) or tf.compat.v1.estimator.experimental.KMeans
    columns = Columns()
    return kind(3, feature_columns=[columns.age, columns.size], **settings)


CENTERS = np.array([[-1, -1, -1], [0.5, -0.2, 0.3], [1, 0.5, 1]], np.float32)


def _kmeans_full(est: Any, **common: Any) -> Any:
    return _kmeans(est, initial_clusters=CENTERS, use_mini_batch=False, **common)


def _kmeans_mini(est: Any, **common: Any) -> Any:
    return _kmeans(est, initial_clusters=CENTERS, **common)


def _kmeans_cosine(est: Any, **common: Any) -> Any:
    return _kmeans(est, initial_clusters=CENTERS, distance_metric="cosine", use_mini_batch=False, **common)


def _kmeans_plus_plus(est: Any, **common: Any) -> Any:
    return _kmeans(est, initial_clusters="kmeans_plus_plus", seed=3, use_mini_batch=False, **common)


def _sdca_binary(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.LinearClassifier(
        [columns.age, columns.size, columns.age_buckets, columns.tags, columns.cross],
        optimizer=est.experimental.LinearSDCA("id", symmetric_l2_regularization=2.0),
        weight_column="weight",
        **common,
    )


def _sdca_real(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.LinearRegressor(
        [columns.size, columns.weighted_kinds, columns.word],
        optimizer=est.experimental.LinearSDCA(
            "id", num_table_shards=2, symmetric_l1_regularization=0.1, adaptive=True
        ),
        **common,
    )


def _rnn(est: Any, cell_type: str, units: Any, **settings: Any) -> Any:
    columns = Columns()
    return est.experimental.RNNClassifier(columns.sequence(), units=units, cell_type=cell_type, **settings)


def _rnn_simple(est: Any, **common: Any) -> Any:
    columns = Columns()
    context = [columns.age, tf.feature_column.embedding_column(columns.word, 2)]
    return _rnn(est, "simple_rnn", [4], context_feature_columns=context, **common)


def _rnn_lstm(est: Any, **common: Any) -> Any:
    return _rnn(est, "lstm", 3, n_classes=3, weight_column="weight", **common)


def _rnn_gru(est: Any, **common: Any) -> Any:
    return _rnn(est, "gru", [3, 2], optimizer="Adam", **common)


def _rnn_each(est: Any, **common: Any) -> Any:
    return _rnn(est, "lstm", [3], return_sequences=True, **common)


def _rnn_real(est: Any, **common: Any) -> Any:
    return est.experimental.RNNEstimator(
        est.RegressionHead(), Columns().sequence(), units=[3], cell_type="gru", **common
    )


EXPERIMENTAL: dict[str, tuple[Any, str]] = {
    "kmeans_full": (_kmeans_full, "none"),
    "kmeans_mini": (_kmeans_mini, "none"),
    "kmeans_cosine": (_kmeans_cosine, "none"),
    "kmeans_plus_plus": (_kmeans_plus_plus, "none"),
    "sdca_binary": (_sdca_binary, "binary"),
    "sdca_real": (_sdca_real, "real"),
    "rnn_simple": (_rnn_simple, "binary"),
    "rnn_lstm": (_rnn_lstm, "three"),
    "rnn_gru": (_rnn_gru, "binary"),
    "rnn_each": (_rnn_each, "each"),
    "rnn_real": (_rnn_real, "real"),
}
"""Name to the function that builds the estimator, and the kind of its labels."""

ONE_BY_ONE = ("sdca_binary", "sdca_real")
"""Trained with batches of one: the solver goes through the examples of a batch in an order of its own."""

SEQUENCES = ("rnn_simple", "rnn_lstm", "rnn_gru", "rnn_each", "rnn_real")
"""Given the sequences too."""
