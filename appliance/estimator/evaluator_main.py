"""What runs in the evaluator's process: build the experiment again and follow the training."""

import contextlib
import fcntl
import logging
import os
import pickle
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf

from appliance.estimator.evaluation_policy import POLL_SECONDS, TrainingEnd
from appliance.estimator.evaluator import Evaluator, follow
from appliance.estimator.evaluator_process import DealtWith, Done, Failed
from appliance.estimator.experiment import Experiment

log = logging.getLogger(__name__)

LOCK_FILE = "evaluator.lock"


@dataclass(frozen=True)
class ExperimentEvaluation:
    """Evaluates the checkpoints of an experiment until the training at the other end of a pipe has ended.

    Fields:
        experiment: the pickled `(experiment_fn, run_config, params)`; read in the process, so that an error
            in it is told like any other.
        model_dir: where the training writes its checkpoints.
    """

    experiment: bytes
    model_dir: str

    def __call__(self, connection: Connection) -> None:
        """Do it; the last message says how it ended."""
        # Both reach the whole process group; this one ends when the training has, after its last checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            self._run(connection)
        except Exception:  # noqa: BLE001 - the other process must see whatever a user's code raises
            traceback.print_exc()  # Into the log of the run, where it may be started again and succeed.
            _send(connection, Failed(traceback.format_exc()))
            raise SystemExit(1) from None
        _send(connection, Done())

    def _run(self, connection: Connection) -> None:
        experiment = self._build()
        spec = experiment.eval_spec
        with only_evaluator(experiment.estimator.eval_dir(spec.name)):
            follow(
                Evaluator(experiment.estimator, spec, lambda event: _send(connection, event)),
                _PipeSignals(connection),
                max_steps=experiment.train_spec.max_steps,
                start_delay_secs=spec.start_delay_secs,
                throttle_secs=spec.throttle_secs,
                min_steps_between=experiment.min_eval_frequency,
                on_dealt_with=lambda: _send(connection, DealtWith()),
            )

    def _build(self) -> Experiment:
        experiment_fn, run_config, params = pickle.loads(self.experiment)
        experiment: Experiment = experiment_fn(run_config, params)
        if experiment.estimator.model_dir != self.model_dir:
            raise ValueError(
                f"The experiment trains in {self.model_dir!r}, but built again for the evaluation it has the "
                f"model_dir {experiment.estimator.model_dir!r}. "
                "Let experiment_fn give its Estimator the run_config."
            )
        return experiment


class _PipeSignals:
    """Hears of the end of training through a pipe, whose end of file means that its process is dead."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ended: TrainingEnd | None = None

    def ended(self) -> TrainingEnd | None:
        self.wait(0)
        return self._ended

    def wait(self, seconds: float) -> None:
        if self._ended is not None or not self._connection.poll(seconds):
            return
        try:
            self._ended = self._connection.recv()
        except (EOFError, ConnectionResetError):
            log.warning("training_process_gone")
            self._ended = TrainingEnd(final=False)


@contextlib.contextmanager
def only_evaluator(eval_dir: str) -> Iterator[None]:
    """Wait until no other process evaluates into this folder: the evaluator of a killed training may still.

    Only processes of this machine are seen, and only in a local folder.
    """
    if "://" in eval_dir:
        yield
        return
    tf.io.gfile.makedirs(eval_dir)
    with open(os.path.join(eval_dir, LOCK_FILE), "w") as file:
        while not _locked(file):
            time.sleep(POLL_SECONDS)
        yield


def _locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _send(connection: Connection, message: Any) -> None:
    """Send, unless the training process is dead: its evaluator goes on to the last checkpoint."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(message)
