"""The data and the feature columns of the golden scenarios, the same under every TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

EXAMPLES = 48
WORDS = np.array([b"ant", b"bee", b"cat", b"dog", b""])
LISTS = np.array([[b"cow", b"hen"], [b"pig", b""], [b"", b""]])
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
        "id": np.array([f"example {i}".encode() for i in range(EXAMPLES)]),
        "weight": random.uniform(0.25, 3, (EXAMPLES, 1)).astype(np.float32),
    }


def labels(kind: str) -> Any:
    """Return the labels of all examples of a kind; `several` are a dict for two heads."""
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
        "counts": np.floor(np.exp(score)).astype(np.int64),
        "hot": np.stack([score > 0, score > 1, score < 0.5], axis=1).astype(np.int64),
        "listed": LISTS[np.digitize(score, [-0.7, 0.7])],
        "each": (sequences()["signal"] > 0).astype(np.int64),
        "several": {
            "which": np.digitize(score, [-0.7, 0.7]).astype(np.int64).reshape(-1, 1),
            "much": score.astype(np.float32),
        },
    }[kind]


def sequences() -> dict[str, np.ndarray]:
    """Return sequences of up to four words and numbers, filled up with '' and 0."""
    random = np.random.RandomState(13)
    lengths = random.randint(1, 5, size=(EXAMPLES, 1))
    # Each batch needs one of full length: tf.estimator fails where all end before the tensors do.
    lengths[::4] = 4
    present = np.arange(4) < lengths
    return {
        "tokens": np.where(present, WORDS[random.randint(4, size=(EXAMPLES, 4))], b""),
        "signal": np.where(present, random.normal(0, 1, (EXAMPLES, 4)), 0).astype(np.float32),
    }


def sparse_sequences(given: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Return a batch's features with the sequences as SparseTensors, as sequence columns take them."""
    return {**given, **{key: tf.sparse.from_dense(given[key]) for key in sequences()}}


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

    def sequence(self) -> list[Any]:
        """Columns of sequences."""
        fc = tf.feature_column
        tokens = fc.sequence_categorical_column_with_vocabulary_list("tokens", ["ant", "bee", "cat"])
        return [fc.embedding_column(tokens, 2), fc.sequence_numeric_column("signal")]


def scaled(age: tf.Tensor) -> tf.Tensor:
    """Bring an age near to 0."""
    return (age - 40.0) / 20.0


def keras_optimizer(name: str, **settings: Any) -> Any:
    """Return a callable that makes a Keras optimizer, the legacy one where there is one."""
    module = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)
    if not hasattr(getattr(module, name), "get_updates"):
        module = tf.keras.optimizers
    return lambda: getattr(module, name)(**settings)
