"""One run of the wide & deep race with a Keras model of the same columns, in a process of its own.

    python -m benchmarks.wide_and_deep_keras columns|ids STEPS_PER_EXECUTION ARRAYS.npz STEPS

`columns`: the model looks up, buckets and crosses the features of each batch, as the Estimator does. `ids`:
that is done for all rows beforehand, and the model trains on what came of it: the most that can be done for
Keras. Prints the figures of `benchmarks.wide_and_deep`. A Keras model has one optimizer: Adagrad, where the
Estimator has Ftrl beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.wide_and_deep import (
    BATCH,
    CROSSES,
    INTEGERS,
    STRINGS,
    WARM_UP_STEPS,
    Clock,
    boundaries,
    load,
)

Arrays = Mapping[str, np.ndarray]


class Crossing(keras.layers.HashedCrossing):
    """Crosses three features as well: the layer computes that, but cannot tell the shape."""

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the first feature."""
        return input_shape[0]


def inputs(features: Arrays) -> dict[str, Any]:
    """Return an input for each feature, `[batch, 1]`."""
    return {
        name: keras.Input([1], name=name, dtype="string" if name in STRINGS else values.dtype.name)
        for name, values in features.items()
    }


def id_model(features: Arrays) -> tuple[Any, dict[str, int]]:
    """Return the model from features to ids, by column, and how many ids each column has."""
    raw = inputs(features)
    ids: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for name in features:
        if name in STRINGS:
            words = [word.decode() for word in np.unique(features[name])]
            ids[name], sizes[name] = keras.layers.StringLookup(vocabulary=words)(raw[name]), len(words) + 1
        elif name in INTEGERS:
            ids[name], sizes[name] = keras.layers.Identity(dtype="int64")(raw[name]), INTEGERS[name]
        else:
            edges, bucketized = boundaries(features[name]), f"{name}_bucketized"
            ids[bucketized], sizes[bucketized] = keras.layers.Discretization(edges)(raw[name]), len(edges) + 1
    for names, size in CROSSES.items():
        cross = "_X_".join(names)
        ids[cross], sizes[cross] = Crossing(size)(tuple(raw[name] for name in names)), size
    return keras.Model(raw, ids), sizes


def network(sizes: Mapping[str, int], numbers: list[str]) -> Any:
    """Return the model from ids and numbers to logits: a weight for each id, and layers on embeddings."""
    layers = keras.layers
    ids = {name: keras.Input([1], name=name, dtype="int64") for name in sizes}
    values = {name: keras.Input([1], name=name) for name in numbers}
    wide = layers.Add()([layers.Embedding(sizes[name], 1, "zeros")(each) for name, each in ids.items()])
    embedded = [layers.Embedding(sizes[name], 8)(ids[name]) for name in (*STRINGS, *INTEGERS)]
    deep = layers.Concatenate()([*(layers.Flatten()(each) for each in embedded), *values.values()])
    for units in (128, 64):
        deep = layers.Dense(units, activation="relu")(deep)
    return keras.Model({**ids, **values}, layers.Add()([layers.Flatten()(wide), layers.Dense(1)(deep)]))


def build(kind: str, features: Arrays, count: int) -> tuple[Any, dict[str, Any]]:
    """Return the model and what it trains on, of the first `count` rows."""
    numbers = [name for name in features if name not in STRINGS and name not in INTEGERS]
    x = {name: values[:count, None] for name, values in features.items()}
    # Keras takes strings as tensors only.
    x |= {name: tf.constant(x[name]) for name in STRINGS}
    columns, sizes = id_model(features)
    model = network(sizes, numbers)
    if kind == "ids":
        ids = columns.predict(x, batch_size=10_000, verbose=0)
        return model, {**ids, **{name: x[name] for name in numbers}}
    raw = inputs(features)
    return keras.Model(raw, model({**columns(raw), **{name: raw[name] for name in numbers}})), x


def main(kind: str, steps_per_execution: int, path: str, steps: int) -> None:
    """Train once and print the figures."""
    features, labels = load(path)
    clock = Clock()
    model, x = build(kind, features, steps * BATCH)
    model.compile(
        keras.optimizers.Adagrad(0.001),
        keras.losses.BinaryCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
    )
    # The functions of the first call are those of the second, which is measured.
    fit(model, x, labels, WARM_UP_STEPS)
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: clock.note(WARM_UP_STEPS))
    end = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: clock.note(steps))
    fit(model, x, labels, steps - WARM_UP_STEPS, [begin, end])
    clock.show()


def fit(model: Any, x: Mapping[str, Any], labels: np.ndarray, steps: int, callbacks: Any = None) -> None:
    """Train on the first rows, in random order, for so many steps."""
    count = steps * BATCH
    some = {name: values[:count] for name, values in x.items()}
    model.fit(some, labels[:count, None], batch_size=BATCH, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
