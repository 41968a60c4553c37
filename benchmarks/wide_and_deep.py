"""One run of the wide & deep race, in a process of its own, with either library.

    python wide_and_deep.py tensorflow|appliance ARRAYS.npz STEPS

Runs on the interpreter of either library, so it needs nothing but TensorFlow and numpy. Prints JSON:
`seconds` from the moment the libraries and arrays are loaded until `train` returns, `steps_per_second`
after the first 200 steps, and `import_seconds`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import numpy as np

BATCH = 128
STRINGS = ("carrier", "origin", "dest")
INTEGERS = {"month": 13, "weekday": 7, "hour": 24}


def main(library: str, path: str, steps: int) -> None:
    """Train once and print the figures."""
    started = time.perf_counter()
    import tensorflow as tf

    if library == "appliance":
        from appliance import estimator
    else:
        from tensorflow import estimator
    imported = time.perf_counter()
    with np.load(path) as arrays:
        features = {name: arrays[name] for name in arrays.files}
    labels = features.pop("labels")
    begun = time.perf_counter()
    times: list[tuple[int, float]] = []

    def note(values: dict) -> str:
        times.append((int(values["global_step/Read/ReadVariableOp:0"]), time.perf_counter()))
        return f"step {times[-1][0]}"

    if library == "appliance":
        clock = estimator.LoggingTensorHook(
            ["global_step/Read/ReadVariableOp:0"], every_n_iter=100, formatter=note
        )
    else:
        clock = tf.compat.v1.train.LoggingTensorHook(
            ["global_step/Read/ReadVariableOp:0"], every_n_iter=100, formatter=note
        )
    with tempfile.TemporaryDirectory() as folder:
        model = build(tf, estimator, features, folder)
        model.train(
            lambda: (
                tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(10_000).repeat().batch(BATCH)
            ),
            hooks=[clock],
            steps=steps,
        )
        ended = time.perf_counter()
    steady = [entry for entry in times if entry[0] >= 200]
    print(
        json.dumps(
            {
                "import_seconds": imported - started,
                "seconds": ended - begun,
                "steps_per_second": (steady[-1][0] - steady[0][0]) / (steady[-1][1] - steady[0][1]),
            }
        )
    )


def build(tf, estimator, features, folder):
    """Return the classifier: one weight a category and crosses, joined with a network on embeddings."""
    fc = tf.feature_column
    columns = {
        name: fc.categorical_column_with_vocabulary_list(
            name, [v.decode() for v in np.unique(features[name])]
        )
        for name in STRINGS
    }
    columns |= {name: fc.categorical_column_with_identity(name, count) for name, count in INTEGERS.items()}
    numbers = [name for name in features if name not in columns]
    buckets = {
        name: fc.bucketized_column(
            fc.numeric_column(name), np.unique(np.quantile(features[name], np.arange(0.1, 1.0, 0.1))).tolist()
        )
        for name in numbers
    }
    crosses = [
        fc.crossed_column(["month", "hour"], 512),
        fc.crossed_column(["carrier", "dest"], 2000),
        fc.crossed_column(["carrier", "hour"], 500),
        fc.crossed_column(["origin", "hour", "weekday"], 1000),
    ]
    return estimator.DNNLinearCombinedClassifier(
        model_dir=folder,
        linear_feature_columns=[*columns.values(), *buckets.values(), *crosses],
        dnn_feature_columns=[
            *(fc.embedding_column(column, 8) for column in columns.values()),
            *(fc.numeric_column(name) for name in numbers),
        ],
        dnn_hidden_units=[128, 64],
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
