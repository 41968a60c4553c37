"""How fast training steps are, against Keras on this TensorFlow and against tf.estimator on an old one.

    python -m benchmarks.training [--rounds 5] [--json results.json] [--peer-python PATH]

Every contender runs in every round, one after another, so that a busy machine slows all of them; a ratio is
the median of the ratios within each round. `--peer-python` names an interpreter with TensorFlow 2.15, whose
tf.estimator then runs the wide & deep race as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import idle_hooks
from benchmarks.small_dnn import callable_rate, data, estimator_rate, keras_rate
from benchmarks.table import print_table


@dataclass
class Race:
    """Rates (or seconds) of every contender, one a round.

    Fields:
        name, unit: what was measured.
        ours: the contender that is compared with each of them.
        results: contender to its figures, round by round.
        faster_is: whether larger or smaller figures are better; a ratio above 1 is always better.
    """

    name: str
    unit: str
    ours: str
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
             f"{self.ratio(self.ours, who):.2f}x")
            for who, figures in self.results.items()
        ]  # fmt: skip
        print_table(self.name, ("contender", self.unit, "range", f"{self.ours} against it"), rows)


def run_race(race: Race, contenders: dict[str, Callable[[], float]], rounds: int) -> Race:
    """Let every contender run once in each round."""
    for _ in range(rounds):
        for name, contender in contenders.items():
            race.results.setdefault(name, []).append(contender())
    return race


def small_dnn(rounds: int, steps: int) -> Race:
    """A network of 20-64-32-1 on 100,000 rows at batch 64, everything else by default."""
    x, y = data()
    contenders = {
        "keras.Model.fit": lambda: keras_rate(x, y, steps, steps_per_execution=1),
        "keras.Model.fit, steps_per_execution=50": lambda: keras_rate(x, y, steps, steps_per_execution=50),
        "Estimator.train": lambda: estimator_rate(x, y, steps),
        "Session callable alone": lambda: callable_rate(x, y, steps),
    }
    return run_race(Race("small DNN, batch 64", "steps/s", "Estimator.train"), contenders, rounds)


def wide_and_deep(rounds: int, steps: int, peer_python: str | None) -> list[Race]:
    """The wide & deep model on flights in memory: here, on Keras and on tf.estimator 2.15, each run in a
    fresh process.
    """
    from examples.flights.data import load

    training, _ = load()
    ours = "appliance.estimator"
    title = f"wide & deep on flights, {steps} steps at batch 128"
    races = {
        "seconds": Race(f"{title}, start-up counted", "seconds", ours, faster_is="smaller"),
        "cpu_seconds": Race("the same, time of all cores", "CPU seconds", ours, faster_is="smaller"),
        "steps_per_second": Race("the same, once it runs", "steps/s", ours),
        "cpu_milliseconds": Race("the same, time of all cores", "CPU ms a step", ours, faster_is="smaller"),
    }
    keras = [sys.executable, "-m", "benchmarks.wide_and_deep_keras"]
    contenders = {
        ours: [sys.executable, "-m", "benchmarks.wide_and_deep", "appliance"],
        "keras.Model.fit": [*keras, "columns", "1"],
        "keras.Model.fit, steps_per_execution=50": [*keras, "columns", "50"],
        "the same, ids made beforehand": [*keras, "ids", "50"],
    }
    if peer_python:
        contenders["tf.estimator 2.15"] = [peer_python, "-m", "benchmarks.wide_and_deep", "tensorflow"]
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, "flights.npz")
        np.savez(arrays, labels=training.labels, **training.features)
        for _ in range(rounds):
            for name, command in contenders.items():
                figures = _figures([*command, str(arrays), str(steps)])
                for figure, race in races.items():
                    race.results.setdefault(name, []).append(figures[figure])
    return list(races.values())


def _figures(command: Sequence[str]) -> dict[str, float]:
    """Run a contender in a process of its own and return the JSON that it prints last."""
    finished = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the races and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often every contender runs (default 5)")
    parser.add_argument("--steps", type=int, default=3000, help="steps of each run on the small DNN")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--peer-python", help="an interpreter with TensorFlow 2.15, for its tf.estimator")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    races = [small_dnn(options.rounds, options.steps)]
    races += wide_and_deep(min(options.rounds, 3), 1000, options.peer_python)
    costs = idle_hooks.measure(40 * options.rounds)
    for race in races:
        race.show()
    costs.show()
    if options.json:
        figures = [asdict(result) for result in (*races, costs)]
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
