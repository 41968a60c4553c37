"""The scenarios whose numbers are recorded under TensorFlow 2.15 and compared under the current one.

Each builds an estimator from a module of estimators (tf.estimator, or the one under test); `run` trains it
from fixed weights on fixed batches and returns what it did. Nothing here may depend on TensorFlow's version.
"""

from __future__ import annotations

import glob
import os
import tempfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

EXAMPLES, BATCH, EVAL_BATCH, STEPS = 48, 8, 20, 6
WORDS = np.array([b"ant", b"bee", b"cat", b"dog", b""])
COLORS = np.array([b"red", b"green", b"blue", b"", b"pink"])


def features() -> dict[str, np.ndarray]:
    """Return the features of all examples: numbers, words with gaps, ids and weights."""
    random = np.random.RandomState(7)
    return {
        "age": random.uniform(10, 70, EXAMPLES).astype(np.float32),
        "size": random.normal(0, 1, (EXAMPLES, 2)).astype(np.float32),
        "word": WORDS[random.randint(5, size=EXAMPLES)],
        "color": COLORS[random.randint(5, size=(EXAMPLES, 1))],
        "tags": COLORS[random.randint(5, size=(EXAMPLES, 3))],
        "kinds": WORDS[random.randint(4, size=(EXAMPLES, 3))],
        "strength": random.uniform(0.5, 2, (EXAMPLES, 3)).astype(np.float32),
        "level": random.randint(-1, 4, size=EXAMPLES).astype(np.int64),
        "weight": random.uniform(0.25, 3, (EXAMPLES, 1)).astype(np.float32),
    }


def labels(kind: str) -> np.ndarray:
    """Return the labels of all examples: binary, soft, three, animals, real or pairs."""
    random = np.random.RandomState(11)
    score = features()["size"].sum(axis=1) + random.normal(0, 0.5, EXAMPLES)
    return {
        "binary": (score > 0).astype(np.int64),
        "soft": (1 / (1 + np.exp(-score))).astype(np.float32).reshape(-1, 1),
        "three": np.digitize(score, [-0.7, 0.7]).astype(np.int64).reshape(-1, 1),
        "animals": np.array([b"cow", b"hen", b"pig"])[np.digitize(score, [-0.7, 0.7])],
        "yes_no": np.where(score > 0, b"yes", b"no"),
        "real": score.astype(np.float32),
        "pairs": np.stack([score, score**2], axis=1).astype(np.float32),
    }[kind]


class Columns:
    """The feature columns of the scenarios, made afresh each time."""

    def __init__(self) -> None:
        fc = tf.feature_column
        self.age = fc.numeric_column("age", normalizer_fn=scaled)
        self.size = fc.numeric_column("size", shape=(2,))
        self.age_buckets = fc.bucketized_column(fc.numeric_column("age"), [20.0, 30.0, 50.0])
        self.size_buckets = fc.bucketized_column(fc.numeric_column("size", shape=(2,)), [-0.5, 0.5])
        self.word = fc.categorical_column_with_vocabulary_list("word", ["ant", "bee", "cat"])
        self.word_oov = fc.categorical_column_with_vocabulary_list("word", ["ant"], num_oov_buckets=2)
        self.color = fc.categorical_column_with_hash_bucket("color", 7)
        self.level = fc.categorical_column_with_identity("level", 4)
        self.tags = fc.categorical_column_with_hash_bucket("tags", 9)
        self.weighted_kinds = fc.weighted_categorical_column(
            fc.categorical_column_with_hash_bucket("kinds", 9), "strength"
        )
        self.cross = fc.crossed_column([self.word, "color"], 23)
        self.wide_cross = fc.crossed_column([self.age_buckets, self.level, "word"], 31, hash_key=5)
        self.tag_cross = fc.crossed_column(["tags", "color"], 17)

    def linear(self) -> list[Any]:
        """All kinds of columns that a linear model takes."""
        return [
            self.age,
            self.size,
            self.age_buckets,
            self.size_buckets,
            self.word,
            self.color,
            self.level,
            self.tags,
            self.cross,
            self.wide_cross,
            self.tag_cross,
        ]

    def deep(self) -> list[Any]:
        """All kinds of columns that a network takes."""
        fc = tf.feature_column
        return [
            self.age,
            self.size,
            self.size_buckets,
            fc.embedding_column(self.word, 3),
            fc.embedding_column(self.tags, 2, combiner="sqrtn"),
            fc.embedding_column(self.cross, 2, max_norm=1.5),
            fc.embedding_column(self.wide_cross, 2),
            fc.indicator_column(self.color),
            fc.indicator_column(self.level),
        ]


def scaled(age: tf.Tensor) -> tf.Tensor:
    """Bring an age near to 0."""
    return (age - 40.0) / 20.0


def keras_optimizer(name: str, **settings: Any) -> Any:
    """Return a callable that makes a Keras optimizer, the legacy one where there is one."""
    module = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)
    if not hasattr(getattr(module, name), "get_updates"):
        module = tf.keras.optimizers
    return lambda: getattr(module, name)(**settings)


def _named_optimizer(name: str) -> Callable[..., Any]:
    def build(est: Any, **common: Any) -> Any:
        columns = Columns()
        embeddings = [tf.feature_column.embedding_column(columns.word, 3), columns.size]
        return est.DNNClassifier([4], embeddings, optimizer=name, **common)

    return build


def _keras(name: str, **settings: Any) -> Callable[..., Any]:
    def build(est: Any, **common: Any) -> Any:
        columns = Columns()
        embeddings = [tf.feature_column.embedding_column(columns.word, 3), columns.size]
        return est.DNNRegressor([4], embeddings, optimizer=keras_optimizer(name, **settings), **common)

    return build


def _linear_binary(est: Any, **common: Any) -> Any:
    return est.LinearClassifier(Columns().linear(), **common)


def _linear_animals(est: Any, **common: Any) -> Any:
    return est.LinearClassifier(
        Columns().linear(),
        n_classes=3,
        label_vocabulary=["cow", "hen", "pig"],
        weight_column="weight",
        **common,
    )


def _linear_pairs(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.LinearRegressor(
        [columns.weighted_kinds, columns.word_oov, columns.size],
        label_dimension=2,
        weight_column=tf.feature_column.numeric_column("weight"),
        sparse_combiner="mean",
        optimizer=keras_optimizer("Ftrl", learning_rate=0.1, l1_regularization_strength=0.01, beta=0.2),
        **common,
    )


def _linear_soft(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.LinearClassifier(
        [columns.word, columns.size], optimizer="SGD", weight_column="weight", **common
    )


def _dnn_yes_no(est: Any, **common: Any) -> Any:
    return est.DNNClassifier(
        [8, 4],
        Columns().deep(),
        label_vocabulary=["no", "yes"],
        weight_column="weight",
        optimizer=keras_optimizer("Adagrad", learning_rate=0.1),
        **common,
    )


def _dnn_three_batch_norm(est: Any, **common: Any) -> Any:
    return est.DNNClassifier(
        [8, 4],
        Columns().deep(),
        n_classes=3,
        batch_norm=True,
        activation_fn=tf.nn.tanh,
        optimizer=keras_optimizer("Adam", learning_rate=0.02),
        **common,
    )


def _dnn_pairs(est: Any, **common: Any) -> Any:
    return est.DNNRegressor(
        [6],
        Columns().deep(),
        label_dimension=2,
        weight_column="weight",
        loss_reduction="sum",
        optimizer=keras_optimizer("Adagrad", learning_rate=0.05),
        **common,
    )


def _combined_binary(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.DNNLinearCombinedClassifier(
        linear_feature_columns=columns.linear(),
        dnn_feature_columns=columns.deep(),
        dnn_hidden_units=[8, 4],
        **common,
    )


def _combined_real(est: Any, **common: Any) -> Any:
    columns = Columns()
    return est.DNNLinearCombinedRegressor(
        linear_feature_columns=[columns.word, columns.size, columns.cross],
        linear_optimizer="Adagrad",
        dnn_feature_columns=columns.deep(),
        dnn_optimizer="Adagrad",
        dnn_hidden_units=[8],
        weight_column="weight",
        batch_norm=True,
        **common,
    )


def _combined_linear_only(est: Any, **common: Any) -> Any:
    return est.DNNLinearCombinedClassifier(linear_feature_columns=Columns().linear(), n_classes=3, **common)


SCENARIOS: dict[str, tuple[Callable[..., Any], str]] = {
    "linear_binary": (_linear_binary, "binary"),
    "linear_animals": (_linear_animals, "animals"),
    "linear_pairs": (_linear_pairs, "pairs"),
    "linear_soft": (_linear_soft, "soft"),
    "dnn_yes_no": (_dnn_yes_no, "yes_no"),
    "dnn_three_batch_norm": (_dnn_three_batch_norm, "three"),
    "dnn_pairs": (_dnn_pairs, "pairs"),
    "dnn_adagrad": (_named_optimizer("Adagrad"), "binary"),
    "dnn_adam": (_named_optimizer("Adam"), "binary"),
    "dnn_ftrl": (_named_optimizer("Ftrl"), "binary"),
    "dnn_rmsprop": (_named_optimizer("RMSProp"), "binary"),
    "dnn_sgd": (_named_optimizer("SGD"), "binary"),
    "keras_adam_amsgrad": (_keras("Adam", learning_rate=0.05, amsgrad=True, clipvalue=0.5), "real"),
    "keras_rmsprop_momentum": (_keras("RMSprop", learning_rate=0.01, momentum=0.5), "real"),
    "keras_rmsprop_centered": (_keras("RMSprop", learning_rate=0.01, centered=True), "real"),
    "keras_sgd_nesterov": (
        _keras("SGD", learning_rate=0.02, momentum=0.9, nesterov=True, clipnorm=0.7),
        "real",
    ),
    "combined_binary": (_combined_binary, "binary"),
    "combined_real": (_combined_real, "real"),
    "combined_linear_only": (_combined_linear_only, "three"),
}


EXPORTED = ("linear_animals", "linear_pairs", "dnn_yes_no", "combined_real")
"""The scenarios whose exported signatures are compared; the others have the same heads."""


def initial_value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the fixed first value of a trainable variable, from its name."""
    return np.random.RandomState(zlib.crc32(name.encode())).normal(0, 0.3, shape).astype(np.float32)


class _FixedWeights(tf.compat.v1.train.SessionRunHook):
    """Sets every trainable variable to `initial_value` at the start."""

    def begin(self) -> None:
        """Find the variables."""
        self._variables = tf.compat.v1.trainable_variables()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Set the variables."""
        for variable in self._variables:
            variable.load(initial_value(variable.op.name, tuple(variable.shape.as_list())), session)


def run(est: Any, name: str) -> dict[str, Any]:
    """Train, evaluate, predict and export; return losses by step, metrics, predictions and names."""
    build, kind = SCENARIOS[name]

    def dataset(batch: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((features(), labels(kind))).batch(batch)

    with tempfile.TemporaryDirectory() as model_dir:
        config = est.RunConfig(model_dir=model_dir, save_summary_steps=1, tf_random_seed=1)
        estimator = build(est, config=config)
        estimator.train(lambda: dataset(BATCH), steps=STEPS, hooks=[_FixedWeights()])
        metrics = estimator.evaluate(lambda: dataset(EVAL_BATCH))
        predictions = list(estimator.predict(lambda: dataset(5).take(1)))
        checkpoint = tf.train.latest_checkpoint(model_dir)
        results = {
            "losses": _losses(model_dir),
            "metrics": {key: float(value) for key, value in sorted(metrics.items())},
            "predictions": _plain(predictions),
            "variables": {key: list(shape) for key, shape in sorted(tf.train.list_variables(checkpoint))},
        }
        if name in EXPORTED:
            results["signatures"] = _signatures(est, estimator, model_dir)
        return results


def _losses(model_dir: str) -> list[float]:
    by_step = {}
    for path in glob.glob(os.path.join(model_dir, "events.*")):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "loss":
                    by_step[event.step] = value.simple_value
    return [by_step[step] for step in sorted(by_step)]


def _plain(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    stacked = {key: np.stack([prediction[key] for prediction in predictions]) for key in predictions[0]}
    return {
        key: value.astype(str).tolist() if value.dtype == object else value.tolist()
        for key, value in sorted(stacked.items())
    }


def _signatures(est: Any, estimator: Any, model_dir: str) -> dict[str, Any]:
    spec = tf.feature_column.make_parse_example_spec([*Columns().linear(), Columns().weighted_kinds])
    receiver = est.export.build_parsing_serving_input_receiver_fn(spec)
    path = os.fsdecode(estimator.export_saved_model(os.path.join(model_dir, "exported"), receiver))
    model = tf.compat.v1.saved_model.loader.load
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signatures = model(session, ["serve"], path).signature_def
        return {
            key: {
                "method": signature.method_name,
                "inputs": _tensors(signature.inputs),
                "outputs": _tensors(signature.outputs),
            }
            for key, signature in sorted(signatures.items())
        }


def _tensors(infos: Any) -> dict[str, str]:
    return {
        key: f"{tf.as_dtype(info.dtype).name} {[dim.size for dim in info.tensor_shape.dim]}"
        for key, info in sorted(infos.items())
    }
