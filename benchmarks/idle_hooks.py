"""What one more hook costs on the steps on which it asks for nothing.

    python -m benchmarks.idle_hooks [--rounds 200]

The small network is trained with each of the hooks and with none but those that an Estimator adds (its saver
left out), every one in a session of its own, on one batch again and again; in each round every session takes
100 steps. The times are those of the processor, of all threads of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.small_dnn import BATCH, data, graph_model
from benchmarks.table import print_table

NONE = "no hook"
NEVER = 10**9
STEPS = 100


@dataclass
class Costs:
    """Microseconds a step with each hook, one figure a round."""

    results: dict[str, list[float]] = field(default_factory=dict)

    def show(self) -> None:
        """Print one line a hook."""
        rows, plain = [], self.results[NONE]
        for name, figures in self.results.items():
            more = [figure - other for figure, other in zip(figures, plain, strict=True)]
            quarters = statistics.quantiles(more, n=4) if len(more) > 1 else more * 3
            share = statistics.median(extra / other for extra, other in zip(more, plain, strict=True))
            row = (
                f"{statistics.median(figures):,.0f}",
                f"{quarters[1]:+,.1f}",
                f"{quarters[0]:+,.1f} to {quarters[2]:+,.1f}",
                f"{share:+.1%}",
            )
            rows.append((name, *row))
        columns = ("hook", "CPU µs a step", "more than none", "middle half of the rounds", "of a step")
        print_table("one idle hook, small DNN, batch 64", columns, rows)


def hooks(folder: str) -> dict[str, list[Any]]:
    """Return the hooks of each contender."""
    from appliance import estimator

    class Told(estimator.SessionRunHook):  # type: ignore[misc]
        """Does nothing after each step."""

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Do nothing."""

    class Asked(Told):
        """Asks for nothing before each step."""

        def before_run(self, run_context: Any) -> None:
            """Ask for nothing."""

    return {
        NONE: [],
        "StopAtStepHook": [estimator.StopAtStepHook(last_step=NEVER)],
        "CheckpointSaverHook": [estimator.CheckpointSaverHook(folder, save_steps=NEVER)],
        "own, with an empty after_run": [Told()],
        "own, with an empty before_run too": [Asked()],
    }


class Countdown:
    """Lets a training loop take its steps, as the Coordinator of its session would."""

    def __init__(self) -> None:
        self._left = STEPS

    def should_stop(self) -> bool:
        """Return whether all steps are taken."""
        self._left -= 1
        return self._left < 0

    def raise_requested_exception(self) -> None:
        """Do nothing: no thread of this training has failed."""


def trainer(stack: contextlib.ExitStack, more: list[Any]) -> Callable[[], None]:
    """Open a training with the hooks; return what takes the next steps. The stack closes it."""
    import tensorflow as tf

    from appliance import estimator
    from appliance.estimator.hooks.defaults import training_hooks
    from appliance.estimator.loop import TrainingLoop
    from appliance.estimator.run_config import complete
    from appliance.estimator.sessions import hooked_session, training_session

    v1 = tf.compat.v1
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    config = complete(estimator.RunConfig(save_checkpoints_secs=None), folder)
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        batch = tuple(values[:BATCH] for values in data())
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(batch).repeat())
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        loss, train_op = graph_model(*iterator.get_next())
        spec = estimator.EstimatorSpec(estimator.ModeKeys.TRAIN, loss=loss, train_op=train_op)
        all_hooks = training_hooks(config, spec, more, listeners=())
        loop = TrainingLoop(train_op=train_op, loss=loss, global_step=step, hooks=all_hooks)
        opened = hooked_session(training_session(config, spec, all_hooks), all_hooks)
        session, _ = stack.enter_context(opened)
    return lambda: loop.run(session, Countdown())


def measure(rounds: int) -> Costs:
    """Take steps with each of the hooks in each round."""
    costs = Costs()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trainers = {name: trainer(stack, more) for name, more in hooks(folder).items()}
        for name, take_steps in trainers.items():
            costs.results[name] = []
            take_steps()
        for _ in range(rounds):
            # Nobody always comes after the same one.
            for name, take_steps in random.sample(list(trainers.items()), len(trainers)):
                started = time.process_time()
                take_steps()
                cost = 1e6 * (time.process_time() - started) / STEPS
                costs.results[name].append(cost)
    return costs


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="how often each hook is tried (default 200)")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    measure(options.rounds).show()


if __name__ == "__main__":
    main()
