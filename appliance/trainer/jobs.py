"""The queue of jobs, in SQL. Claimed jobs are leased: a worker that falls silent loses its job to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from appliance.trainer.errors import JobNotFound, LeaseLost
from appliance.trainer.job import ENDED, Event, Job, JobSpec, JobState, LogLine, WorkerInfo, new_job_id
from appliance.trainer.tables import VERSION_TABLE, job_events, job_logs, jobs, metadata, now_seconds, workers
from registry import database
from registry.errors import RegistryError
from registry.store import MIGRATE_COMMAND
from registry.values import storable

__all__ = ["Job", "JobSpec", "JobStore"]

MIGRATIONS = str(Path(__file__).parent / "migrations")
MAX_CRASHES = 3
"""A job whose attempts end that often without a word has failed: it probably kills its process itself."""
MAX_LOG_LINES = 100_000
MAX_LINE_CHARACTERS = 8_000


class JobStore:
    """All operations on the queue. Safe to share between threads; as many processes as you like.

    Methods that take `worker` are for the worker that holds the job; they raise `LeaseLost` when it no longer
    does.
    All raise `registry.errors.DatabaseUnavailable` when the database cannot be reached.
    """

    def __init__(self, database_url: str | sa.Engine, *, migrate: bool = True) -> None:
        """Open the queue, making or bringing up to date its tables.

        Args:
            database_url: a URL, or an engine from `registry.database.connect`, perhaps the registry's.
            migrate: whether tables of an older release may be migrated. Tables are made in an empty database
                anyway.

        Raises:
            DatabaseTooOld: they are older, and `migrate` is false.
            DatabaseTooNew: they were made by a newer release.
        """
        self._owns_engine = isinstance(database_url, str)
        self._engine = database.connect(database_url) if isinstance(database_url, str) else database_url
        try:
            database.prepare(
                self._engine,
                MIGRATIONS,
                VERSION_TABLE,
                metadata,
                may_migrate=migrate,
                migrate_command=MIGRATE_COMMAND,
            )
        except RegistryError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections, unless the engine came from outside."""
        if self._owns_engine:
            self._engine.dispose()

    def submit(self, spec: JobSpec, *, job: str | None = None) -> Job:
        """Put a job into the queue. Its bundle must be in its folder already (`new_job_id` makes the id)."""
        row = {
            "id": job or new_job_id(spec.name),
            "state": "queued",
            **{name: getattr(spec, name) for name in _SPEC_FIELDS},
            "params": dict(spec.params),
            "run_config": dict(spec.run_config),
            "created_at": now_seconds(),
            "attempts": 0,
            "crashes": 0,
            "cancel_requested": False,
            "result": {},
            "progress": {},
            "log_count": 0,
            "event_count": 0,
        }
        insert = sa.insert(jobs).values(row).returning(jobs)
        return _job(database.write(self._engine, lambda session: session.execute(insert).one()))

    def get(self, job: str) -> Job:
        """Return the job.

        Raises:
            JobNotFound: there is none of this id.
        """
        _check_id(job)
        rows = self._rows(sa.select(jobs).where(jobs.c.id == job))
        if not rows:
            raise JobNotFound(job)
        return _job(rows[0])

    def list(self, *, state: JobState | None = None, limit: int = 100) -> list[Job]:
        """Return jobs, newest first."""
        query = sa.select(jobs).order_by(jobs.c.sequence.desc()).limit(limit)
        return [
            _job(row) for row in self._rows(query if state is None else query.where(jobs.c.state == state))
        ]

    def request_cancel(self, job: str) -> Job:
        """Ask for a job's end: at once when it waits, after a checkpoint when it runs.

        A job that has ended stays as it is.

        Raises:
            JobNotFound: there is none of this id.
        """
        _check_id(job)
        waits = jobs.c.state == "queued"
        change = {
            "cancel_requested": True,
            "state": sa.case((waits, "cancelled"), else_=jobs.c.state),
            "finished_at": sa.case((waits, now_seconds()), else_=None),
        }
        update = sa.update(jobs).where(jobs.c.id == job, jobs.c.state.not_in(ENDED)).values(change)
        database.write(self._engine, lambda session: session.execute(update))
        return self.get(job)

    def claim(self, worker: str, lease_seconds: float) -> Job | None:
        """Lease the oldest waiting job to `worker`, or return None. No two workers get the same."""
        self._requeue_abandoned()
        waiting = (
            sa.select(jobs.c.sequence).where(jobs.c.state == "queued").order_by(jobs.c.sequence).limit(1)
        )
        if not self._rows(waiting):
            return None  # A glance without locks, for this is what idle workers ask all the time.
        # PostgreSQL passes over rows that other claims have locked. SQLite has one writer at a time.
        oldest = waiting.with_for_update(skip_locked=True).scalar_subquery()
        change = {
            "state": "running",
            "worker": worker,
            "lease_expires_at": now_seconds() + lease_seconds,
            "attempts": jobs.c.attempts + 1,
            "started_at": sa.func.coalesce(jobs.c.started_at, now_seconds()),
        }
        update = sa.update(jobs).where(jobs.c.sequence == oldest).values(change).returning(jobs)
        row = database.write(self._engine, lambda session: session.execute(update).one_or_none())
        return None if row is None else _job(row)

    def heartbeat(self, job: str, worker: str, lease_seconds: float) -> Job:
        """Renew the lease; the answer says whether the job is to be cancelled."""
        return self._change(job, worker, {"lease_expires_at": now_seconds() + lease_seconds})

    def finish(self, job: str, worker: str, result: Mapping[str, Any]) -> Job:
        """The job has done what it was to do."""
        return self._change(job, worker, {**_ended("succeeded"), "result": dict(result)})

    def fail(self, job: str, worker: str, error: str) -> Job:
        """The job cannot be done, `error` says why; trying again would not help."""
        return self._change(job, worker, {**_ended("failed"), "error": _clean(error)})

    def finish_cancelled(self, job: str, worker: str, result: Mapping[str, Any]) -> Job:
        """The job has stopped because it was asked to."""
        return self._change(job, worker, {**_ended("cancelled"), "result": dict(result)})

    def release(self, job: str, worker: str) -> Job:
        """Put the job back into the queue, to go on from its last checkpoint: the worker has to end."""
        return self._change(job, worker, {"state": "queued", **_NOT_LEASED})

    def crashed(self, job: str, worker: str, error: str) -> Job:
        """The job's process died without a word. Back into the queue, unless that happens too often."""
        return self._change(job, worker, _after_crash(_clean(error)))

    def append_log(self, job: str, worker: str, lines: Sequence[str]) -> None:
        """Append to the log; lines over `MAX_LINE_CHARACTERS` are cut, and the log at `MAX_LOG_LINES`."""
        clean = [_clean(line)[:MAX_LINE_CHARACTERS] for line in lines]

        def append(session: Session) -> None:
            count = sa.select(jobs.c.log_count).where(_held(job, worker)).with_for_update()
            kept = clean[: MAX_LOG_LINES - (session.execute(count).scalar_one_or_none() or 0)]
            sequence, first = _reserve(session, job, worker, jobs.c.log_count, len(kept))
            if kept and first + len(kept) > MAX_LOG_LINES:
                kept[-1] = f"[The log ends here: {MAX_LOG_LINES:,} lines are kept.]"
            rows = [
                {"job": sequence, "number": first + index, "line": line} for index, line in enumerate(kept)
            ]
            if rows:
                session.execute(sa.insert(job_logs).values(at=now_seconds()), rows)

        if clean:
            database.write(self._engine, append)

    def logs(self, job: str, after: int = 0, limit: int = 1000) -> Sequence[LogLine]:
        """Return up to `limit` lines with a number greater than `after`, in order."""
        return [
            LogLine(row.number, _moment(row.at), row.line) for row in self._read(job_logs, job, after, limit)
        ]

    def append_event(self, job: str, worker: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Append an event and make it the job's progress of its kind. `fields` must be fit for JSON."""

        def append(session: Session) -> None:
            sequence, number = _reserve(session, job, worker, jobs.c.event_count, 1)
            row = {
                "job": sequence,
                "number": number,
                "at": now_seconds(),
                "kind": kind,
                "fields": dict(fields),
            }
            session.execute(sa.insert(job_events).values(row))
            this = jobs.c.sequence == sequence
            progress = session.execute(sa.select(jobs.c.progress).where(this)).scalar_one()
            session.execute(sa.update(jobs).where(this).values(progress={**progress, kind: dict(fields)}))

        database.write(self._engine, append)

    def events(self, job: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Return up to `limit` events with a number greater than `after`, in order."""
        rows = self._read(job_events, job, after, limit)
        return [Event(row.number, _moment(row.at), row.kind, row.fields) for row in rows]

    def worker_seen(self, worker: str, job: str | None) -> None:
        """Note that a worker lives, and what it runs."""
        update = sa.update(workers).where(workers.c.name == worker).values(seen_at=now_seconds(), job=job)
        row = {"name": worker, "started_at": now_seconds(), "seen_at": now_seconds(), "job": job}

        def note(session: Session) -> None:
            if not session.execute(update.returning(workers.c.name)).all():
                session.execute(sa.insert(workers).values(row))

        database.write(self._engine, note)

    def worker_gone(self, worker: str) -> None:
        """Note that a worker has ended in good order, and forget those that were not seen for a day."""
        old = workers.c.seen_at < now_seconds() - 86_400
        delete = sa.delete(workers).where((workers.c.name == worker) | old)
        database.write(self._engine, lambda session: session.execute(delete))

    def workers(self, seen_within_seconds: float = 60) -> Sequence[WorkerInfo]:
        """Return the workers that were seen lately, by name."""
        age = (now_seconds() - workers.c.seen_at).label("age")
        rows = self._rows(sa.select(workers, age).where(age < seen_within_seconds).order_by(workers.c.name))
        return [
            WorkerInfo(row.name, _moment(row.started_at), _moment(row.seen_at), row.age, row.job)
            for row in rows
        ]

    def _requeue_abandoned(self) -> None:
        """Take jobs back from workers whose lease ran out."""
        abandoned = (jobs.c.state == "running") & (jobs.c.lease_expires_at < now_seconds())
        if self._rows(sa.select(jobs.c.sequence).where(abandoned).limit(1)):
            update = sa.update(jobs).where(abandoned).values(_after_crash("its worker died"))
            database.write(self._engine, lambda session: session.execute(update))

    def _change(self, job: str, worker: str, change: Mapping[str, Any]) -> Job:
        update = sa.update(jobs).where(_held(job, worker)).values(change).returning(jobs)
        row = database.write(self._engine, lambda session: session.execute(update).one_or_none())
        if row is None:
            raise LeaseLost(job, worker)
        return _job(row)

    def _read(self, table: sa.Table, job: str, after: int, limit: int) -> Sequence[sa.Row[Any]]:
        """Return a job's rows of `table` after a number. Raises JobNotFound."""
        _check_id(job)
        query = (
            sa.select(table)
            .join(jobs, jobs.c.sequence == table.c.job)
            .where(jobs.c.id == job, table.c.number > after)
            .order_by(table.c.number)
            .limit(limit)
        )
        rows = self._rows(query)
        if not rows:
            self.get(job)
        return rows

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return database.read(self._engine, lambda session: session.execute(query).all())


_SPEC_FIELDS = (
    "name",
    "file",
    "function",
    "params",
    "run_config",
    "model",
    "promote",
    "source_revision",
    "submitted_by",
)
_NOT_LEASED: dict[str, Any] = {"worker": None, "lease_expires_at": None}


def _held(job: str, worker: str) -> sa.ColumnElement[bool]:
    return (jobs.c.id == job) & (jobs.c.worker == worker) & (jobs.c.state == "running")


def _reserve(session: Session, job: str, worker: str, counter: sa.Column[int], count: int) -> tuple[int, int]:
    """Return the job's sequence and the first of the next `count` numbers; readers will see no gaps."""
    update = sa.update(jobs).where(_held(job, worker)).values({counter: counter + count})
    row = session.execute(update.returning(jobs.c.sequence, counter)).one_or_none()
    if row is None:
        raise LeaseLost(job, worker)
    return row[0], row[1] - count + 1


def _ended(state: JobState) -> dict[str, Any]:
    return {"state": state, "finished_at": now_seconds(), **_NOT_LEASED}


def _after_crash(error: str) -> dict[str, Any]:
    """Return what becomes of a job whose worker or process died: again, cancelled, or failed."""
    crashes = jobs.c.crashes + 1
    given_up = sa.and_(~jobs.c.cancel_requested, crashes >= MAX_CRASHES)
    ended = sa.or_(jobs.c.cancel_requested, given_up)
    return {
        "state": sa.case((jobs.c.cancel_requested, "cancelled"), (given_up, "failed"), else_="queued"),
        "finished_at": sa.case((ended, now_seconds()), else_=None),
        "error": sa.case((given_up, f"gave up after {MAX_CRASHES} crashes; the last: {error}"), else_=None),
        "crashes": crashes,
        **_NOT_LEASED,
    }


def _clean(text: str) -> str:
    """Return text without NUL, which PostgreSQL does not store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _check_id(job: str) -> None:
    # No job has an id with NUL, but PostgreSQL's driver refuses to look for one.
    if storable(job) != job:
        raise JobNotFound(job)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _job(row: sa.Row[Any]) -> Job:
    facts = row._mapping
    return Job(
        id=facts["id"],
        spec=JobSpec(**{name: facts[name] for name in _SPEC_FIELDS}),
        state=facts["state"],
        created_at=_moment(facts["created_at"]),
        started_at=None if facts["started_at"] is None else _moment(facts["started_at"]),
        finished_at=None if facts["finished_at"] is None else _moment(facts["finished_at"]),
        worker=facts["worker"],
        attempts=facts["attempts"],
        crashes=facts["crashes"],
        cancel_requested=facts["cancel_requested"],
        error=facts["error"],
        result=facts["result"],
        progress=facts["progress"],
    )
