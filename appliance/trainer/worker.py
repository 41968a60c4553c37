"""The worker: claims a job, launches its process, passes on what it says, keeps the lease, and ends it."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from appliance.settings import Settings
from appliance.trainer.errors import LeaseLost
from appliance.trainer.job import Job, JobFolder
from appliance.trainer.jobs import JobStore
from appliance.trainer.launchers import Launcher, Output, RunningTask
from appliance.trainer.launchers.local import LocalLauncher
from appliance.trainer.task_spec import OUTCOME, Outcome, TaskSpec
from registry import Registry
from registry.errors import DatabaseUnavailable

__all__ = ["Worker"]

log = logging.getLogger(__name__)

CLAIM_EVERY_SECONDS = 0.5
"""How often an idle worker looks for a job."""
SEEN_EVERY_SECONDS = 5.0
"""How often a worker says that it lives."""
HEARTBEAT_SECONDS = 1.0
"""How often a lease is renewed, and so how soon a cancel is noticed; more often for short leases."""
FLUSH_SECONDS = 0.2
"""How long what a task says is gathered before it is written."""
LOST_DATABASE_PAUSE_SECONDS = 1.0


class Worker:
    """Runs jobs, one after the other, until it is told to stop."""

    def __init__(
        self, settings: Settings, *, launcher: Launcher | None = None, name: str | None = None
    ) -> None:
        """Open the queue; the tables of queue and registry are made in an empty database.

        Args:
            settings: `database_url`, `jobs_root`, `artifact_root`, `lease_seconds`, `stop_grace_seconds`.
            launcher: what starts the processes of jobs; by default on this machine.
            name: must be unique among all workers; by default made of host and process.

        Raises:
            DatabaseError: the database cannot be used.
        """
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._settings = settings
        self._launcher = launcher or LocalLauncher()
        Registry(settings.database_url, settings.artifact_root, migrate=False).close()
        self._store = JobStore(settings.database_url, migrate=False)

    def run(self, stop_event: threading.Event) -> None:
        """Claim and run jobs until `stop_event` is set; a running job is then put back at a checkpoint.

        While the database cannot be reached it waits. To be called from a thread that lives until it returns.
        """
        log.info("worker_started", extra={"worker": self.name})
        while not stop_event.is_set():
            try:
                self._work(stop_event)
            except DatabaseUnavailable as error:
                log.warning("database_unavailable", extra={"reason": str(error)})
                stop_event.wait(LOST_DATABASE_PAUSE_SECONDS)
        try:
            self._store.worker_gone(self.name)
        except DatabaseUnavailable as error:
            log.warning("database_unavailable", extra={"reason": str(error)})
        self._store.close()
        log.info("worker_stopped", extra={"worker": self.name})

    def _work(self, stop_event: threading.Event) -> None:
        seen_due = 0.0
        while not stop_event.is_set():
            if time.monotonic() >= seen_due:
                self._store.worker_seen(self.name, None)
                seen_due = time.monotonic() + SEEN_EVERY_SECONDS
            job = self._store.claim(self.name, self._settings.lease_seconds)
            if job is None:
                stop_event.wait(CLAIM_EVERY_SECONDS)
                continue
            self._run_job(job, stop_event)
            seen_due = 0.0

    def _run_job(self, job: Job, stop_event: threading.Event) -> None:
        log.info("job_claimed", extra={"job": job.id, "attempt": job.attempts})
        settings = self._settings
        folder = JobFolder(settings.jobs_root / job.id)
        task = TaskSpec(job.id, job.spec, str(folder.root), settings.database_url, settings.artifact_root)
        try:
            running = self._launcher.launch(task)
        except OSError as error:
            self._store.fail(job.id, self.name, f"Cannot start the job's process: {error}.")
            return
        attempt = _Attempt(self._store, self.name, settings, job, running)
        try:
            state = attempt.run(stop_event)
        except LeaseLost as error:
            log.warning("lease_lost", extra={"job": job.id, "reason": str(error)})
        else:
            log.info("job_left", extra={"job": job.id, "state": state})
        finally:
            attempt.end()


class _Attempt:
    """One running task, and what the queue is to know of it."""

    def __init__(self, store: JobStore, worker: str, settings: Settings, job: Job, task: RunningTask) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._job = job
        self._task = task
        self._closed = False
        self._lines: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._outcome: Outcome | None = None
        self._asked_at: float | None = None
        now = time.monotonic()
        self._lease_ends = now + settings.lease_seconds
        self._beat_due = self._seen_due = self._flush_due = now

    def run(self, stop_event: threading.Event) -> str:
        """Follow the task to its end and return the state in which the job is left.

        Raises:
            LeaseLost: the job belongs to another worker now, or might.
        """
        while self._task.exit_code is None:
            self._take(self._task.read(FLUSH_SECONDS))
            self._tell_queue(self._report)
            if stop_event.is_set() or self._job.cancel_requested:
                self._ask_to_stop()
        exit_code = self._task.exit_code
        self.end()
        while not self._tell_queue(lambda: self._conclude(exit_code, stop_event)):
            time.sleep(FLUSH_SECONDS)
        return self._job.state

    def end(self) -> None:
        """Leave nothing of the task running."""
        if not self._closed:
            self._closed = True
            self._take(self._task.close())

    def _take(self, output: Output) -> None:
        self._lines += output.lines
        for message in output.messages:
            if message["kind"] == OUTCOME:
                self._outcome = Outcome.from_message(message)
            else:
                self._events.append(dict(message))

    def _tell_queue(self, tell: Callable[[], None]) -> bool:
        """Call `tell`; when the database is away, keep the task as long as the lease surely holds."""
        try:
            tell()
        except DatabaseUnavailable as error:
            log.warning("database_unavailable", extra={"job": self._job.id, "reason": str(error)})
            if time.monotonic() >= self._lease_ends:
                raise LeaseLost(self._job.id, self._worker) from error
            return False
        return True

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._beat_due:
            self._beat(now)
        if now >= self._flush_due:
            self._flush()
            self._flush_due = now + FLUSH_SECONDS
        if now >= self._seen_due:
            self._store.worker_seen(self._worker, self._job.id)
            self._seen_due = now + SEEN_EVERY_SECONDS

    def _beat(self, now: float) -> None:
        lease_seconds = self._settings.lease_seconds
        self._job = self._store.heartbeat(self._job.id, self._worker, lease_seconds)
        self._lease_ends = now + lease_seconds
        self._beat_due = now + min(HEARTBEAT_SECONDS, lease_seconds / 3)

    def _flush(self) -> None:
        """Write what the task has said; what could not be written stays for the next time."""
        self._store.append_log(self._job.id, self._worker, self._lines)
        self._lines = []
        while self._events:
            fields = dict(self._events[0])
            self._store.append_event(self._job.id, self._worker, fields.pop("kind"), fields)
            del self._events[0]

    def _ask_to_stop(self) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            log.info("job_asked_to_stop", extra={"job": self._job.id})
            self._task.stop()
        elif now - self._asked_at > self._settings.stop_grace_seconds:
            log.warning("job_killed", extra={"job": self._job.id})
            self._task.kill()

    def _conclude(self, exit_code: int, stop_event: threading.Event) -> None:
        self._flush()
        # The last look at the queue is a second old at most, but a cancel may have come since.
        self._beat(time.monotonic())
        end = self._outcome or self._unsaid(exit_code)
        job, worker = self._job.id, self._worker
        if end.end == "succeeded":
            self._job = self._store.finish(job, worker, end.result)
        elif end.end == "failed":
            self._job = self._store.fail(job, worker, end.error)
        elif self._job.cancel_requested:
            self._job = self._store.finish_cancelled(job, worker, end.result)
        elif end.end == "stopped":
            self._job = self._store.release(job, worker)
        else:
            self._job = self._store.crashed(job, worker, end.error)

    def _unsaid(self, exit_code: int) -> Outcome:
        """Return the outcome of a task that ended without telling one."""
        if self._asked_at is not None:
            # It was killed because it did not stop in time: an older checkpoint must do.
            return Outcome("stopped", {})
        if exit_code < 0:
            name = signal.strsignal(-exit_code) or "unknown"
            return Outcome("crashed", {}, f"its process was killed by signal {-exit_code} ({name})")
        return Outcome("crashed", {}, f"its process ended with exit code {exit_code}")
