"""What workers that train in step tell one another: to make another step, to end together.

Each step takes all workers: one that stopped, for whatever reason, would leave the others waiting for ever.
So before each step the workers agree that all of them have data and want to go on; when one does not, all of
them end there, in good order. The errors of TensorFlow when one has gone become a `WorkerLost`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from appliance.estimator.run_config import RunConfig

_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_OUT_OF_DATA, _LEAVING, _FAILED = range(3)
"""What the workers tell one another before each step: places in the signals."""
_ABORTED = "Collective ops is aborted"
"""What TensorFlow says when an operation of another worker has failed, with the code of that error."""


class WorkerLost(RuntimeError):
    """Another worker of the cluster does not answer, or has failed; this one cannot train without it."""

    def __init__(self, what: str, task: str) -> None:
        super().__init__(what, task)
        self.what, self.task = what, task

    def __str__(self) -> str:
        return (
            f"Training in {self.task} ended, because {self.what}. Look in the logs of the other tasks for "
            "the first error; then start all tasks again, each as a new process: training goes on from the "
            "last checkpoint."
        )


@contextlib.contextmanager
def workers_answer(config: RunConfig) -> Iterator[None]:
    """Turn TensorFlow's errors about other tasks in the body into a `WorkerLost`."""
    try:
        yield
    except tf.errors.OpError as error:
        if not isinstance(error, _LOST) and _ABORTED not in error.message:
            raise
        raise WorkerLost(f"another worker is gone ({_reason(error.message)})", _task(config)) from error


def _reason(message: str) -> str:
    """Return the sentences of TensorFlow's message, without the operation and where it was made."""
    said = re.split(r"^Node: .*$", message, maxsplit=1, flags=re.MULTILINE)[-1]
    return " ".join(line.strip() for line in said.split("[[", 1)[0].splitlines() if line.strip())


def _task(config: RunConfig) -> str:
    return f"{config.task_type}:{config.task_id}"


class Agreement:
    """What the workers settle before each step: whether all of them go on.

    Built in the default graph, in the scope of the strategy.

    Args:
        config: of this worker.
        out_of_data: bool scalar, whether this worker's data has ended. Running it takes the next batches.
    """

    def __init__(self, config: RunConfig, out_of_data: Any) -> None:
        self._config = config
        self._signals = tf.stack([tf.cast(out_of_data, tf.int64), *tf.unstack(tf.zeros([2], tf.int64))])
        self._agreed = sum_of_workers(config, self._signals)
        self._arrived = sum_of_workers(config, tf.constant(1, tf.int64))
        self._over = False
        self.out_of_data = False
        """Whether training ended because the data of a worker did."""

    @contextlib.contextmanager
    def between_workers(self, session: Any) -> Iterator[None]:
        """Ask and be asked in `session`; when the body is left, for any reason, let the others know.

        Raises:
            WorkerLost: another worker does not answer.
        """
        self._ask = session.make_callable(self._agreed)
        self._over = self.out_of_data = False
        try:
            with workers_answer(self._config):
                yield
                self._leave(session, _LEAVING)
        except WorkerLost:
            raise
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):  # It is the first error that tells what happened.
                self._leave(session, _FAILED)
            raise

    def goes_on(self) -> bool:
        """Ask the others whether to make another step, and take the data for it.

        Raises:
            WorkerLost: another worker has failed.
        """
        signals = self._ask()
        self._over = bool(signals.any())
        self.out_of_data = bool(signals[_OUT_OF_DATA])
        if signals[_FAILED]:
            raise WorkerLost("another worker has failed", _task(self._config))
        return not self._over

    def _leave(self, session: Any, why: int) -> None:
        if not self._over:
            self._over = True
            # What is fed does not run: a worker that leaves takes no more data.
            session.run(self._agreed, {self._signals: np.eye(3, dtype=np.int64)[why]})

    def hook(self) -> Any:
        """Return the hook, to be the last one, that ends a training when it has ended in all workers: then
        the chief has written the last checkpoint."""
        return _WaitForAll(self._config, self._arrived)


class _WaitForAll(tf.compat.v1.train.SessionRunHook):
    def __init__(self, config: RunConfig, arrived: Any) -> None:
        self._config = config
        self._arrived = arrived

    def end(self, session: Any) -> None:
        with workers_answer(self._config):
            session.run(self._arrived)


def sum_of_workers(config: RunConfig, value: Any) -> Any:
    """Return the sum of a tensor over all workers."""
    strategy = config.train_distribute
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    options = waiting_options(config).merge(strategy.extended._communication_options).merge(ring)
    with tf.device("/cpu:0"):
        summed = strategy.extended._host_cross_device_ops.reduce(
            tf.distribute.ReduceOp.SUM,
            value,
            value,
            options,
        )
    return strategy.experimental_local_results(summed)[0]


def waiting_options(config: RunConfig) -> Any:
    """Return the communication options with which no worker waits for ever."""
    return tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=float(config.session_creation_timeout_secs)
    )
