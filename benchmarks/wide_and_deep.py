"""One run of the wide & deep race, in a process of its own, with either library.

    python -m benchmarks.wide_and_deep tensorflow|appliance ARRAYS.npz STEPS

Runs on the interpreter of either library, so it needs nothing but TensorFlow and numpy. Prints JSON:
`seconds` (`cpu_seconds`: of all cores) from the moment the libraries and arrays are loaded until `train`
returns; `steps_per_second` and `cpu_milliseconds` a step are those after the first 200.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import numpy as np

BATCH = 128
WARM_UP_STEPS = 200
STRINGS = ("carrier", "origin", "dest")
INTEGERS = {"month": 13, "weekday": 7, "hour": 24}
CROSSES = {
    ("month", "hour"): 512,
    ("carrier", "dest"): 2000,
    ("carrier", "hour"): 500,
    ("origin", "hour", "weekday"): 1000,
}


class Clock:
    """The times at which steps were reached."""

    def __init__(self) -> None:
        self._begun = _now()
        self._times = []

    def note(self, step: int) -> None:
        """Remember that a step is done."""
        if step >= WARM_UP_STEPS:
            self._times.append((step, *_now()))

    def show(self) -> None:
        """Print the figures, now that training has ended."""
        now = _now()
        (first, started, cpu_before), (last, ended, cpu_after) = self._times[0], self._times[-1]
        print(
            json.dumps(
                {
                    "seconds": now[0] - self._begun[0],
                    "cpu_seconds": now[1] - self._begun[1],
                    "steps_per_second": (last - first) / (ended - started),
                    "cpu_milliseconds": 1e3 * (cpu_after - cpu_before) / (last - first),
                }
            )
        )


def _now() -> tuple:
    return time.perf_counter(), time.process_time()


def load(path: str) -> tuple:
    """Return features and labels."""
    with np.load(path) as arrays:
        features = {name: arrays[name] for name in arrays.files}
    return features, features.pop("labels")


def boundaries(values: np.ndarray) -> list:
    """Return nine deciles, or fewer where they are equal."""
    return np.unique(np.quantile(values, np.arange(0.1, 1.0, 0.1))).tolist()


def main(library: str, path: str, steps: int) -> None:
    """Train once and print the figures."""
    import tensorflow as tf

    if library == "appliance":
        from appliance import estimator
    else:
        from tensorflow import estimator
    features, labels = load(path)
    clock = Clock()

    def note(values: dict) -> str:
        step = int(values["global_step/Read/ReadVariableOp:0"])
        clock.note(step)
        return f"step {step}"

    hooks_of = estimator if library == "appliance" else tf.compat.v1.train
    hook = hooks_of.LoggingTensorHook(["global_step/Read/ReadVariableOp:0"], every_n_iter=100, formatter=note)
    with tempfile.TemporaryDirectory() as folder:
        model = build(tf, estimator, features, folder)
        model.train(
            lambda: (
                tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(10_000).repeat().batch(BATCH)
            ),
            hooks=[hook],
            steps=steps,
        )
        clock.show()


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
        name: fc.bucketized_column(fc.numeric_column(name), boundaries(features[name])) for name in numbers
    }
    crosses = [fc.crossed_column(names, size) for names, size in CROSSES.items()]
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
