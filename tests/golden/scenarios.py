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

from tests.golden.data import Columns, features, keras_optimizer, labels, sequences, sparse_sequences
from tests.golden.experimental_scenarios import EXPERIMENTAL, ONE_BY_ONE, SEQUENCES
from tests.golden.head_scenarios import HEADS, ONLY

BATCH, EVAL_BATCH, STEPS = 8, 20, 6


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
    **HEADS,
    **EXPERIMENTAL,
}


EXPORTED = (
    "linear_animals",
    "linear_pairs",
    "dnn_yes_no",
    "combined_real",
    "multi_label",
    "logistic",
    "multi_head",
    "baseline_counts",
    "kmeans_full",
)
"""The scenarios whose exported signatures are compared; the others have the same heads."""


def initial_value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the fixed first value of a trainable variable, from its name."""
    return np.random.RandomState(zlib.crc32(name.encode())).normal(0, 0.3, shape).astype(np.float32)


class FixedWeights(tf.compat.v1.train.SessionRunHook):
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
        known = {**features(), **sequences()} if name in SEQUENCES else features()
        given = {key: known[key] for key in ONLY.get(name, known)}
        if kind == "none":
            return tf.data.Dataset.from_tensor_slices(given).batch(batch).repeat(2)
        batches = tf.data.Dataset.from_tensor_slices((given, labels(kind))).batch(batch)
        if name in SEQUENCES:
            return batches.map(lambda given, label: (sparse_sequences(given), label))
        if kind != "listed":
            return batches
        return batches.map(lambda given, names: (given, tf.sparse.from_dense(names)))

    with tempfile.TemporaryDirectory() as model_dir:
        config = est.RunConfig(model_dir=model_dir, save_summary_steps=1, tf_random_seed=1)
        estimator = build(est, config=config)
        batch = 1 if name in ONE_BY_ONE else BATCH
        hooks = [] if kind == "none" else [FixedWeights()]
        estimator.train(lambda: dataset(batch), steps=STEPS, hooks=hooks)
        metrics = estimator.evaluate(lambda: dataset(EVAL_BATCH))
        predictions = list(estimator.predict(lambda: dataset(5).take(1)))
        checkpoint = tf.train.latest_checkpoint(model_dir)
        results = {
            "losses": losses(model_dir),
            "metrics": {key: float(value) for key, value in sorted(metrics.items())},
            "predictions": plain(predictions),
            "variables": {key: list(shape) for key, shape in sorted(tf.train.list_variables(checkpoint))},
        }
        if name in EXPORTED:
            results["signatures"] = _signatures(est, estimator, model_dir)
        return results


def losses(model_dir: str) -> list[float]:
    by_step = {}
    for path in glob.glob(os.path.join(model_dir, "events.*")):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag in ("loss", "loss/beasts", "loss/chance"):
                    by_step[event.step] = value.simple_value
    return [by_step[step] for step in sorted(by_step)]


def plain(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    stacked = {key: np.stack([prediction[key] for prediction in predictions]) for key in predictions[0]}
    return {
        _joined(key): value.astype(str).tolist() if value.dtype == object else value.tolist()
        for key, value in sorted(stacked.items())
    }


def _joined(key: Any) -> str:
    """Return a key of predictions as JSON can hold it: those of a MultiHead are pairs."""
    return key if isinstance(key, str) else "/".join(key)


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
