"""Golden scenarios of the heads beyond the canned classifiers and regressors, and of the baselines."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.golden.data import Columns, keras_optimizer


def _small_network(est: Any, head: Any, **common: Any) -> Any:
    columns = Columns()
    embeddings = [tf.feature_column.embedding_column(columns.word, 3), columns.size]
    return est.DNNEstimator(
        head, [4], embeddings, optimizer=keras_optimizer("Adagrad", learning_rate=0.1), **common
    )


def _multi_label(est: Any, **common: Any) -> Any:
    head = est.MultiLabelHead(
        3, weight_column="weight", thresholds=[0.25, 0.5], classes_for_class_based_metrics=[0, 2]
    )
    return _small_network(est, head, **common)


def _multi_label_names(est: Any, **common: Any) -> Any:
    head = est.MultiLabelHead(
        3, label_vocabulary=["cow", "hen", "pig"], classes_for_class_based_metrics=["hen"], name="beasts"
    )
    columns = Columns()
    return est.LinearEstimator(head, [columns.word, columns.size], **common)


def _logistic(est: Any, **common: Any) -> Any:
    return _small_network(est, est.LogisticRegressionHead(weight_column="weight", name="chance"), **common)


def _poisson(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.DNNLinearCombinedEstimator(
        est.PoissonRegressionHead(weight_column="weight", loss_reduction="sum"),
        linear_feature_columns=[columns.word, columns.size],
        dnn_feature_columns=[columns.size],
        dnn_hidden_units=[4],
        **common,
    )


def _multi_head(est: Any, **common: Any) -> Any:
    heads = [
        est.MultiClassHead(3, weight_column="weight", name="which"),
        est.RegressionHead(name="much"),
    ]
    return _small_network(est, est.MultiHead(heads, head_weights=[1.0, 0.25]), **common)


def _baseline_animals(est: Any, **common: Any) -> Any:
    return est.BaselineClassifier(
        n_classes=3, label_vocabulary=["cow", "hen", "pig"], weight_column="weight", **common
    )


def _baseline_pairs(est: Any, **common: Any) -> Any:
    return est.BaselineRegressor(label_dimension=2, optimizer="SGD", **common)


def _baseline_counts(est: Any, **common: Any) -> Any:
    return est.BaselineEstimator(est.PoissonRegressionHead(compute_full_loss=False), **common)


ONLY = {
    "baseline_animals": ("size", "weight"),
    "baseline_pairs": ("size",),
    "baseline_counts": ("size",),
}
"""The features that these get: tf.estimator's baselines fail on a Dataset with more than one, apart from the
weights, because the initial value of the bias then waits for a comparison of the features' sizes."""

HEADS: dict[str, tuple[Any, str]] = {
    "multi_label": (_multi_label, "hot"),
    "multi_label_names": (_multi_label_names, "listed"),
    "logistic": (_logistic, "soft"),
    "poisson": (_poisson, "counts"),
    "multi_head": (_multi_head, "several"),
    "baseline_animals": (_baseline_animals, "animals"),
    "baseline_pairs": (_baseline_pairs, "pairs"),
    "baseline_counts": (_baseline_counts, "counts"),
}
"""Name to the function that builds the estimator, and the kind of its labels."""
