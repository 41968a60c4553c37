"""The process of one attempt at a job: `python -m appliance.trainer.task EVENTS_FD PARENT_PID < task.json`.

Everything it prints is the job's log. Events, and at the end the outcome, go as lines of JSON to the file
descriptor that it inherits. SIGTERM asks for a checkpoint and then the end.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

from appliance.bundle import unpack_bundle
from appliance.log_lines import FieldsFormatter
from appliance.trainer import publishing
from appliance.trainer.errors import FolderUnusable
from appliance.trainer.task_spec import Outcome, TaskSpec
from appliance.trainer.user_code import (
    EvaluationFailed,
    UserCodeError,
    UserExperiment,
    error_line,
    show_error,
)
from registry import Registry
from registry.errors import DatabaseUnavailable, PublishFailed
from registry.values import plain

SAVE_CHECKPOINTS_SECONDS = 30
"""How much training a crash may cost, unless the job says otherwise."""
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the task whose description is read from stdin; the exit code is 0 once its outcome is told."""
    events_fd, parent = int(arguments[0]), int(arguments[1])
    _die_with(parent)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    os.set_inheritable(events_fd, False)
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    task = TaskSpec.from_json(sys.stdin.read())
    with os.fdopen(events_fd, "w", encoding="utf-8") as events:
        teller = Teller(events)
        teller.tell(attempt(task, teller, stop).to_message())
    return 0


def attempt(task: TaskSpec, teller: Teller, stop: threading.Event) -> Outcome:
    """Do what the job asks for; whatever goes wrong in it is an outcome, with the traceback in the log."""
    code = str(task.files.code)
    try:
        return _train_and_publish(task, teller, stop)
    except (DatabaseUnavailable, PublishFailed, FolderUnusable) as error:
        # Not the user's doing, and training is not lost: the next attempt goes on from its checkpoints.
        return Outcome("crashed", {}, error_line(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything.
        print(show_error(error, code), file=sys.stderr, flush=True)
        return Outcome("failed", {}, error_line(error))


def _train_and_publish(task: TaskSpec, teller: Teller, stop: threading.Event) -> Outcome:
    spec = task.spec
    with Registry(task.database_url, task.artifact_root, migrate=False) as registry:
        done = publishing.version_of_job(registry, spec.model, task.job) if spec.model else None
        if done is not None:
            # An earlier attempt ended after it had published, and before anyone heard of it.
            return _succeeded(done.step, done.metrics, done.version, publishing.promote(registry, done, task))
        if not task.files.code.exists():
            _unpack(task)
        os.chdir(task.files.code)
        experiment = UserExperiment(str(task.files.code), spec.file, spec.function)
        experiment.load()
        # Before training, for the data may grow meanwhile.
        fingerprint = experiment.data_fingerprint(dict(spec.params)) if spec.model else ""
        result = _train(task, experiment, teller, stop)
        # A stop that comes after the last step still keeps the result from being registered and promoted: who
        # cancels wants that, and a job that goes on later finds the result as it is.
        if result.stopped or stop.is_set():
            return Outcome("stopped", {"step": result.step})
        if spec.model is None:
            return _succeeded(result.step, result.evaluation or {}, None, {})
        if not result.exports:
            raise UserCodeError(
                f"Nothing to register as {spec.model!r}: training has ended without an export. "
                "Give the Experiment export_strategies, for example make_export_strategy(serving_input_fn)."
            )
        newest = result.exports[-1]
        version = publishing.publish(
            registry, task, newest.path, newest.step, newest.metrics, data_fingerprint=fingerprint
        )
        promotion = publishing.promote(registry, version, task)
        return _succeeded(newest.step, newest.metrics, version.version, promotion)


def _unpack(task: TaskSpec) -> None:
    try:
        unpack_bundle(task.files.bundle, task.files.code)
    except OSError as error:
        raise FolderUnusable(task.folder, error.strerror or str(error)) from error


def _train(task: TaskSpec, experiment: UserExperiment, teller: Teller, stop: threading.Event) -> Any:
    spec = task.spec
    settings: dict[str, Any] = {"save_checkpoints_secs": SAVE_CHECKPOINTS_SECONDS, **spec.run_config}
    if "save_checkpoints_steps" in spec.run_config:
        del settings["save_checkpoints_secs"]
    # TensorFlow takes seconds to import: not before the file is known to be one.
    from appliance.estimator import RunConfig, continuous

    run_config = RunConfig(model_dir=str(task.files.model), **settings)
    try:
        return continuous.run(
            experiment, run_config, dict(spec.params), on_event=teller.tell, should_stop=stop.is_set
        )
    except continuous.EvaluatorFailed as error:
        raise EvaluationFailed(error.reason) from error


def _succeeded(
    step: int | None, metrics: Mapping[str, Any], version: int | None, promotion: Mapping[str, Any]
) -> Outcome:
    registered = {} if version is None else {"version": version}
    return Outcome("succeeded", {"step": step, "metrics": dict(metrics), **registered, **promotion})


class Teller:
    """Writes events. Values are made fit for JSON: NumPy numbers plain, nan and infinities by name."""

    def __init__(self, events: IO[str]) -> None:
        self._events = events

    def tell(self, event: Mapping[str, Any]) -> None:
        """Write one event."""
        self._events.write(json.dumps(plain(event, "event")) + "\n")
        self._events.flush()


def _die_with(parent: int) -> None:
    """Let the kernel kill this process as soon as its parent is gone, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the call.
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
