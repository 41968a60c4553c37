"""How fast training steps are, against Keras on this TensorFlow and against tf.estimator on an old one.

    python -m benchmarks.training [--rounds 5] [--json results.json] [--peer-python PATH]

Every contender runs in every round, one after another, so that a busy machine slows all of them; a ratio is
the median of the ratios within each round. `--peer-python` names an interpreter with TensorFlow 2.15 and
adds the wide & deep race.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import print_table

BATCH = 64
HIDDEN = (64, 32)
FEATURES = 20


@dataclass
class Race:
    """Rates (or seconds) of every contender, one a round.

    Fields:
        name, unit: what was measured.
        reference: the contender that the ratios are against.
        results: contender to its figures, round by round.
        faster_is: whether larger or smaller figures are better; a ratio above 1 is always better.
    """

    name: str
    unit: str
    reference: str
    results: dict[str, list[float]] = field(default_factory=dict)
    faster_is: str = "larger"

    def ratio(self, contender: str, against: str) -> float:
        """Return how many times better `contender` is than `against`: the median over the rounds."""
        pairs = zip(self.results[contender], self.results[against], strict=True)
        return statistics.median(a / b if self.faster_is == "larger" else b / a for a, b in pairs)

    def show(self) -> None:
        """Print one line a contender."""
        rows = [
            (who, f"{statistics.median(figures):,.1f}", f"{min(figures):,.1f} to {max(figures):,.1f}",
             f"{self.ratio(who, self.reference):.2f}x")
            for who, figures in self.results.items()
        ]  # fmt: skip
        print_table(self.name, ("contender", self.unit, "range", f"against {self.reference}"), rows)


def run_race(race: Race, contenders: dict[str, Callable[[], float]], rounds: int) -> Race:
    """Let every contender run once in each round."""
    for _ in range(rounds):
        for name, contender in contenders.items():
            race.results.setdefault(name, []).append(contender())
    return race


def small_dnn(rounds: int, steps: int) -> Race:
    """A network of 20-64-32-1 on 100,000 rows at batch 64, everything else by default."""
    x = np.random.default_rng(0).random((100_000, FEATURES), dtype=np.float32)
    y = x.sum(axis=1, keepdims=True)
    contenders = {
        "keras.Model.fit": lambda: keras_rate(x, y, steps, steps_per_execution=1),
        "keras.Model.fit, steps_per_execution=50": lambda: keras_rate(x, y, steps, steps_per_execution=50),
        "Estimator.train": lambda: estimator_rate(x, y, steps),
        "Session callable alone": lambda: callable_rate(x, y, steps),
    }
    race = Race("small DNN, batch 64", "steps/s", "keras.Model.fit")
    return run_race(race, contenders, rounds)


def dataset(x: np.ndarray, y: np.ndarray) -> Any:
    """Return the input that all contenders read."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).repeat().batch(BATCH)


def graph_model(features: Any, labels: Any) -> tuple[Any, Any]:
    """Build the network in the default graph; return (loss, train op)."""
    import tensorflow as tf

    v1 = tf.compat.v1
    layer, width = features, FEATURES
    for index, units in enumerate((*HIDDEN, 1)):
        with v1.variable_scope(f"layer_{index}"):
            kernel = v1.get_variable("kernel", [width, units], initializer=v1.glorot_uniform_initializer())
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        layer, width = tf.nn.bias_add(tf.matmul(layer, kernel), bias), units
        if units != 1:
            layer = tf.nn.relu(layer)
    loss = tf.reduce_mean(tf.square(layer - labels))
    return loss, v1.train.AdagradOptimizer(0.05).minimize(loss, global_step=v1.train.get_global_step())


def estimator_rate(x: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Return the steps/s of `Estimator.train` with a default RunConfig, from its own log every 100 steps."""
    from appliance import estimator

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss, train_op = graph_model(features, labels)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    times: list[float] = []

    def note(values: dict[str, Any]) -> str:
        times.append(time.perf_counter())
        return f"step {values['global_step/Read/ReadVariableOp:0']}"

    clock = estimator.LoggingTensorHook(
        ["global_step/Read/ReadVariableOp:0"], every_n_iter=100, formatter=note
    )
    with tempfile.TemporaryDirectory() as folder:
        estimator.Estimator(model_fn, model_dir=folder).train(
            lambda: dataset(x, y), hooks=[clock], steps=steps + 101
        )
    return 100 * (len(times) - 2) / (times[-1] - times[1])


def keras_rate(x: np.ndarray, y: np.ndarray, steps: int, steps_per_execution: int) -> float:
    """Return the steps/s of the second epoch of `fit`; the first compiles."""
    import keras

    times: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),
    )
    layers = [keras.layers.Dense(units, activation="relu") for units in HIDDEN]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adagrad(0.05), "mse", steps_per_execution=steps_per_execution)
    # The first epoch is as long as one compiled function takes, the second is measured.
    model.fit(dataset(x, y), epochs=1, steps_per_epoch=2 * steps_per_execution, verbose=0)
    model.fit(dataset(x, y), epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return steps / (times[1] - times[0])


def callable_rate(x: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Return the steps/s of a bare loop around a Session callable: the floor that no loop can beat."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        iterator = v1.data.make_initializable_iterator(dataset(x, y).prefetch(2))
        loss, train_op = graph_model(*iterator.get_next())
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), step.initializer, iterator.initializer])
            train = session.make_callable([train_op, loss])
            for _ in range(100):
                train()
            started = time.perf_counter()
            for _ in range(steps):
                train()
            return steps / (time.perf_counter() - started)


def wide_and_deep(rounds: int, steps: int, peer_python: str) -> list[Race]:
    """The wide & deep model on flights in memory, here and on tf.estimator 2.15, each in a fresh process."""
    from examples.flights.data import load

    training, _ = load()
    title = f"wide & deep on flights, {steps} steps at batch 128, start-up counted"
    whole = Race(title, "seconds", "tf.estimator 2.15", faster_is="smaller")
    steady = Race("the same, once it runs", "steps/s", "tf.estimator 2.15")
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, "flights.npz")
        np.savez(arrays, labels=training.labels, **training.features)
        for _ in range(rounds):
            for name, python, library in (
                ("tf.estimator 2.15", peer_python, "tensorflow"),
                ("appliance.estimator", sys.executable, "appliance"),
            ):
                figures = _wide_and_deep_process(python, library, arrays, steps)
                whole.results.setdefault(name, []).append(figures["seconds"])
                steady.results.setdefault(name, []).append(figures["steps_per_second"])
    return [whole, steady]


def _wide_and_deep_process(python: str, library: str, arrays: Path, steps: int) -> dict[str, float]:
    script = Path(__file__).with_name("wide_and_deep.py")
    root = Path(__file__).parent.parent
    finished = subprocess.run(
        [python, str(script), library, str(arrays), str(steps)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the races and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often every contender runs (default 5)")
    parser.add_argument("--steps", type=int, default=3000, help="steps of each run on the small DNN")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--peer-python", help="an interpreter with TensorFlow 2.15, for the wide & deep race")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    races = [small_dnn(options.rounds, options.steps)]
    if options.peer_python:
        races += wide_and_deep(min(options.rounds, 3), 1000, options.peer_python)
    for race in races:
        race.show()
    if options.json:
        options.json.write_text(json.dumps([asdict(race) for race in races], indent=2))


if __name__ == "__main__":
    main()
