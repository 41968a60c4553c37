"""Will a flight arrive more than 15 minutes late? A linear model, or a wide & deep one.

Submit it with `appliance train examples/flights/experiment.py --param kind=linear --model flights`.
"""

from __future__ import annotations

from typing import Any

import data  # The file beside this one: a job runs with its own folder first on the path.
import numpy as np
import tensorflow as tf

from appliance import estimator

Columns = dict[str, Any]


def experiment(run_config: estimator.RunConfig, params: dict[str, Any]) -> estimator.Experiment:
    """Return the experiment that `params` asks for.

    Args:
        run_config: where and how to train.
        params: `kind` (`linear`, or `wide_and_deep`), and optionally `train_steps` and `batch_size`.

    Raises:
        ValueError: `kind` is neither.
    """
    builders = {"linear": linear, "wide_and_deep": wide_and_deep}
    kind = params.get("kind", "linear")
    if kind not in builders:
        raise ValueError(f"Unknown kind of model {kind!r}. Choose one of {sorted(builders)}.")
    training, evaluation = data.load()
    columns = feature_columns(training)
    batch_size = int(params.get("batch_size", 512))
    return estimator.Experiment(
        estimator=builders[kind](columns, run_config),
        train_input_fn=input_fn(training, batch_size, shuffle=True),
        eval_input_fn=input_fn(evaluation, 4096, shuffle=False),
        train_steps=int(params.get("train_steps", 1000)),
        eval_steps=None,
        eval_delay_secs=0,
        continuous_eval_throttle_secs=0,
        export_strategies=[estimator.make_export_strategy(serving_inputs(columns), exports_to_keep=2)],
    )


def linear(columns: Columns, config: estimator.RunConfig) -> estimator.Estimator:
    """Return logistic regression on one weight a category, and one a tenth of each measurement's range."""
    return estimator.LinearClassifier(
        feature_columns=[*categories(columns), *buckets(columns)],
        optimizer=lambda: tf.keras.optimizers.Ftrl(0.05),
        config=config,
    )


def wide_and_deep(columns: Columns, config: estimator.RunConfig) -> estimator.Estimator:
    """Return the linear model with crosses, joined with a network on embeddings.

    References:
        Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv 1606.07792.
    """
    cross = tf.feature_column.crossed_column
    crosses = [
        cross(["month", "hour"], 512),
        cross(["carrier", "dest"], 2000),
        cross(["carrier", "hour"], 500),
        cross(["origin", "hour", "weekday"], 1000),
        cross([columns["humid_bucket"], "month"], 200),
        cross([columns["pressure_bucket"], "month"], 200),
    ]
    widths = {"carrier": 8, "dest": 8, "month": 4, "hour": 4, "weekday": 3, "origin": 2}
    embeddings = [tf.feature_column.embedding_column(columns[name], width) for name, width in widths.items()]
    return estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=[*categories(columns), *buckets(columns), *crosses],
        linear_optimizer=lambda: tf.keras.optimizers.Ftrl(0.02),
        dnn_feature_columns=[*embeddings, *(columns[f"{name}_normal"] for name in data.NUMERIC)],
        dnn_optimizer=lambda: tf.keras.optimizers.Adam(0.001),
        dnn_hidden_units=[128, 64],
        config=config,
    )


def feature_columns(training: data.Split) -> Columns:
    """Return every column that the models use, by name; vocabularies and scales come from `training`."""
    fc, features = tf.feature_column, training.features
    columns: Columns = {
        "month": fc.categorical_column_with_identity("month", 13),
        "weekday": fc.categorical_column_with_identity("weekday", 7),
        "hour": fc.categorical_column_with_identity("hour", 24),
    }
    for name in data.CATEGORICAL:
        vocabulary = [value.decode() for value in np.unique(features[name])]
        columns[name] = fc.categorical_column_with_vocabulary_list(name, vocabulary)
    for name in data.NUMERIC:
        tenths = np.unique(np.quantile(features[name], np.arange(0.1, 1.0, 0.1))).tolist()
        columns[name] = fc.numeric_column(name)
        columns[f"{name}_bucket"] = fc.bucketized_column(columns[name], tenths)
        columns[f"{name}_normal"] = fc.numeric_column(name, normalizer_fn=normalizer(features[name]))
    return columns


def normalizer(values: np.ndarray) -> Any:
    """Return the function that gives `values` mean 0 and standard deviation 1."""
    mean, deviation = float(values.mean()), float(values.std())
    return lambda tensor: (tensor - mean) / deviation


def categories(columns: Columns) -> list[Any]:
    """Return the categorical columns."""
    return [columns[name] for name in (*data.CATEGORICAL, *data.CALENDAR)]


def buckets(columns: Columns) -> list[Any]:
    """Return the bucketized columns."""
    return [columns[f"{name}_bucket"] for name in data.NUMERIC]


def input_fn(split: data.Split, batch_size: int, *, shuffle: bool) -> Any:
    """Return an `input_fn` over `split`: endless and shuffled, or once and in order."""
    return estimator.inputs.numpy_input_fn(
        split.features,
        split.labels,
        batch_size=batch_size,
        num_epochs=None if shuffle else 1,
        shuffle=shuffle,
    )


def serving_inputs(columns: Columns) -> Any:
    """Return a `serving_input_receiver_fn` for serialized `tf.Example`s or, in `raw:predict`, features."""
    used = [*categories(columns), *(columns[name] for name in data.NUMERIC)]
    spec = tf.feature_column.make_parse_example_spec(used)
    # One value a row, parsed or fed by name; the columns want a second dimension.
    single = {name: tf.io.FixedLenFeature([], feature.dtype) for name, feature in spec.items()}

    def receiver() -> estimator.export.ServingInputReceiver:
        examples = tf.compat.v1.placeholder(tf.string, [None], name="input_example_tensor")
        values = tf.io.parse_example(examples, single)
        features = {name: tf.expand_dims(value, 1) for name, value in values.items()}
        return estimator.export.ServingInputReceiver(features, {"examples": examples}, {"raw": values})

    return receiver
