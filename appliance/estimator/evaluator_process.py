"""The process that evaluates beside the training: how it is started, watched and told to end."""

import contextlib
import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from appliance.estimator.evaluation_policy import TrainingEnd

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Failures in a row, no checkpoint dealt with in between, after which the evaluator is not started again."""


class EvaluatorFailed(RuntimeError):
    """The evaluator has failed again and again."""

    def __init__(self, failures: int, reason: str) -> None:
        """Take the number of failures in a row, and the last one's traceback or how its process ended."""
        super().__init__(failures, reason)
        self.failures, self.reason = failures, reason

    def __str__(self) -> str:
        return f"The evaluator failed {self.failures} times in a row, the last time with:\n{self.reason}"


@dataclass(frozen=True)
class Failed:
    """The evaluator's last message: it raised, with this traceback."""

    reason: str


@dataclass(frozen=True)
class DealtWith:
    """A checkpoint has been evaluated and exported without a failure."""


@dataclass(frozen=True)
class Done:
    """The evaluator's last message: all is evaluated."""


EvaluatorMain = Callable[[Connection], None]
"""Runs in the process: sends events (dicts) and `DealtWith`, then `Failed` or `Done`; gets `TrainingEnd`."""


class EvaluatorProcess:
    """Runs the evaluator in a spawned process, and a new one when it dies. A thread reads its events."""

    def __init__(
        self,
        main: EvaluatorMain,
        *,
        on_event: Callable[[dict[str, Any]], None],
        on_failure: Callable[[], None],
    ) -> None:
        """Prepare the process.

        Args:
            main: runs in the process; picklable.
            on_event: told of each evaluation and export, in the thread.
            on_failure: called, in the thread, when the evaluator is given up.
        """
        self._main = main
        self._on_event = on_event
        self._on_failure = on_failure
        self._lock = threading.Lock()  # Over what follows; the thread and the caller both use it.
        self._process: Any = None
        self._connection: Connection | None = None
        self._ended: TrainingEnd | None = None
        self._killed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._supervise, name="evaluator", daemon=True)

    def start(self) -> None:
        """Start the process and the thread that reads from it."""
        self._thread.start()

    def training_ended(self, end: TrainingEnd) -> None:
        """Tell the evaluator that no further checkpoint will come."""
        with self._lock:
            self._ended = end
            self._tell()

    def join(self) -> Exception | None:
        """Wait until the evaluator has ended; return why it was given up, None if all is evaluated."""
        self._thread.join()
        return self._error

    def kill(self) -> None:
        """End the process at once, in the middle of whatever it does."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def _supervise(self) -> None:
        failures = 0
        try:
            while self._launch():
                progressed, failure = self._read()
                if failure is None:
                    return
                failures = 1 if progressed else failures + 1
                log.warning("evaluator_failed", extra={"failures": failures, "reason": failure})
                if failures >= MAX_FAILURES:
                    raise EvaluatorFailed(failures, failure)
        except Exception as error:  # noqa: BLE001 - not lost: join() hands it to the thread that trains
            self._error = error
            self._on_failure()
            self._end_process()

    def _launch(self) -> bool:
        """Start a process, unless `kill` has been called."""
        context = multiprocessing.get_context("spawn")
        with self._lock:
            if self._killed:
                return False
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=self._main, args=(theirs,), name="evaluator")
            self._process.start()
            # Each side holds one end only, so the death of one is the end of file for the other.
            theirs.close()
            self._tell()
            return True

    def _tell(self) -> None:
        if self._ended is not None and self._connection is not None:
            # A dead evaluator hears nothing; the thread notices, and the next one is told when it starts.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send(self._ended)

    def _read(self) -> tuple[bool, str | None]:
        """Pass on events until the process ends; return whether it got anything done, and its failure."""
        progressed, message = False, None
        with contextlib.suppress(EOFError, ConnectionResetError):
            while not isinstance(message := self._receive(), Failed | Done):
                if isinstance(message, DealtWith):
                    progressed = True
                else:
                    self._on_event(message)
        self._process.join()
        if isinstance(message, Done):
            return progressed, None
        return progressed, message.reason if isinstance(message, Failed) else _death(self._process.exitcode)

    def _receive(self) -> Any:
        if self._connection is None:
            raise EOFError
        return self._connection.recv()

    def _end_process(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()


def _death(exit_code: int) -> str:
    if exit_code < 0:
        return f"The evaluator's process was killed by {signal.Signals(-exit_code).name}."
    return f"The evaluator's process ended with exit code {exit_code} before its work was done."
