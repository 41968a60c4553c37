"""The queue of jobs, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from appliance.trainer import jobs as jobs_module
from appliance.trainer.errors import InvalidJob, JobNotFound, LeaseLost
from appliance.trainer.job import JobSpec, new_job_id
from appliance.trainer.jobs import JobStore
from appliance.trainer.tables import VERSION_TABLE, metadata
from registry import database

LEASE_SECONDS = 300.0
RUN_OUT = -1.0
"""A lease that has run out when it is given, so that no test has to wait for that."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'appliance.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(database_url: str) -> Iterator[JobStore]:
    store = JobStore(database_url)
    yield store
    store.close()


SPEC = JobSpec(
    file="experiment.py",
    function="census",
    params={"units": [32, 16], "name": "grüße"},
    run_config={"save_checkpoints_steps": 10},
    model="census",
    promote="production",
    source_revision="3f2a",
    submitted_by="ada",
)


def test_job_comes_back_as_submitted(store: JobStore) -> None:
    job = store.submit(SPEC)
    assert job.spec == SPEC
    assert (job.state, job.spec.name, job.attempts, job.ended) == ("queued", "census", 0, False)
    assert job.id.startswith("census-")
    assert store.get(job.id) == job
    assert store.submit(SPEC, job="mine-1").id == "mine-1"
    assert [job.id for job in store.list()] == ["mine-1", job.id]
    assert store.list(state="running") == []
    for ask in (store.get, store.request_cancel, store.logs, store.events):
        for unknown in ("other", "no\0id"):
            with pytest.raises(JobNotFound, match=f"Cannot find job '{unknown[:2]}"):
                ask(unknown)


def test_oldest_waiting_job_is_claimed_first_and_once(store: JobStore) -> None:
    first, second = store.submit(SPEC), store.submit(SPEC)
    claimed = store.claim("w1", LEASE_SECONDS)
    assert claimed is not None
    assert (claimed.id, claimed.state, claimed.worker, claimed.attempts) == (first.id, "running", "w1", 1)
    assert claimed.started_at is not None
    other = store.claim("w2", LEASE_SECONDS)
    assert other is not None
    assert other.id == second.id
    assert store.claim("w3", LEASE_SECONDS) is None


def claim_all(url: str, worker: str, start: multiprocessing.synchronize.Event) -> list[str]:
    """Claim until nothing is left; the ids that were claimed."""
    store = JobStore(url)
    start.wait(60)
    claimed = []
    while job := store.claim(worker, LEASE_SECONDS):
        claimed.append(job.id)
    store.close()
    return claimed


def claim_into(url: str, worker: str, start: multiprocessing.synchronize.Event, answers: object) -> None:
    answers.put(claim_all(url, worker, start))  # type: ignore[attr-defined]


def test_processes_that_claim_at_once_never_get_the_same_job(store: JobStore, database_url: str) -> None:
    submitted = {store.submit(SPEC).id for _ in range(60)}
    context = multiprocessing.get_context("spawn")
    start, answers = context.Event(), context.Queue()
    processes = [
        context.Process(target=claim_into, args=(database_url, f"w{i}", start, answers)) for i in range(4)
    ]
    for process in processes:
        process.start()
    start.set()
    claimed = [job for _ in processes for job in answers.get(timeout=120)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(claimed) == 60
    assert set(claimed) == submitted


def test_job_of_a_silent_worker_goes_to_another(store: JobStore) -> None:
    job = store.submit(SPEC)
    assert store.claim("w1", LEASE_SECONDS) is not None
    store.heartbeat(job.id, "w1", LEASE_SECONDS)
    assert store.claim("w2", LEASE_SECONDS) is None
    store.heartbeat(job.id, "w1", RUN_OUT)
    again = store.claim("w2", LEASE_SECONDS)
    assert again is not None
    assert (again.id, again.worker, again.attempts, again.crashes) == (job.id, "w2", 2, 1)
    for late in (
        lambda: store.heartbeat(job.id, "w1", LEASE_SECONDS),
        lambda: store.finish(job.id, "w1", {}),
        lambda: store.fail(job.id, "w1", "no"),
        lambda: store.append_log(job.id, "w1", ["late"]),
        lambda: store.append_event(job.id, "w1", "train", {"step": 1}),
    ):
        with pytest.raises(LeaseLost, match=f"'w1' no longer holds job '{job.id}'"):
            late()
    assert store.finish(job.id, "w2", {"version": 3}).result == {"version": 3}
    assert store.logs(job.id) == []


def test_job_that_kills_its_workers_is_given_up(store: JobStore) -> None:
    job = store.submit(SPEC)
    assert store.claim("w1", RUN_OUT) is not None
    assert store.claim("w2", LEASE_SECONDS) is not None
    assert store.crashed(job.id, "w2", "killed by SIGSEGV").state == "queued"
    assert store.claim("w3", RUN_OUT) is not None
    assert store.claim("w4", LEASE_SECONDS) is None
    failed = store.get(job.id)
    assert (failed.state, failed.error) == ("failed", "gave up after 3 crashes; the last: its worker died")
    assert failed.finished_at is not None


def test_released_job_waits_again_without_a_crash(store: JobStore) -> None:
    job = store.submit(SPEC)
    store.submit(SPEC)
    store.claim("w1", LEASE_SECONDS)
    released = store.release(job.id, "w1")
    assert (released.state, released.worker, released.crashes) == ("queued", None, 0)
    again = store.claim("w2", LEASE_SECONDS)
    assert again is not None
    assert (again.id, again.attempts, again.started_at) == (job.id, 2, released.started_at)


def test_cancel_ends_a_waiting_job_and_asks_a_running_one(store: JobStore) -> None:
    waiting = store.submit(SPEC)
    cancelled = store.request_cancel(waiting.id)
    assert (cancelled.state, cancelled.ended) == ("cancelled", True)
    assert store.claim("w1", LEASE_SECONDS) is None

    running = store.submit(SPEC)
    store.claim("w1", LEASE_SECONDS)
    assert store.request_cancel(running.id).state == "running"
    assert store.heartbeat(running.id, "w1", LEASE_SECONDS).cancel_requested
    assert store.finish_cancelled(running.id, "w1", {"step": 7}).state == "cancelled"
    assert store.request_cancel(running.id).state == "cancelled"

    abandoned = store.submit(SPEC)
    store.claim("w1", RUN_OUT)
    store.request_cancel(abandoned.id)
    assert store.claim("w2", LEASE_SECONDS) is None
    assert store.get(abandoned.id).state == "cancelled"

    done = store.submit(SPEC)
    store.claim("w1", LEASE_SECONDS)
    store.finish(done.id, "w1", {})
    assert store.request_cancel(done.id).state == "succeeded"
    with pytest.raises(JobNotFound):
        store.request_cancel("other")


def test_log_is_read_in_pages(store: JobStore) -> None:
    job = store.submit(SPEC)
    store.claim("w1", LEASE_SECONDS)
    store.append_log(job.id, "w1", ["one", "two"])
    store.append_log(job.id, "w1", [])
    store.append_log(job.id, "w1", ["three\0", "x" * 9_000])
    assert [(line.number, line.line) for line in store.logs(job.id, limit=2)] == [(1, "one"), (2, "two")]
    rest = store.logs(job.id, after=2)
    assert [(line.number, len(line.line)) for line in rest] == [(3, 6), (4, 8_000)]
    assert rest[0].line == "three\N{REPLACEMENT CHARACTER}"
    assert store.logs(job.id, after=4) == []
    with pytest.raises(JobNotFound):
        store.logs("other")


def test_log_says_where_it_ends(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that prints without end must not fill the database."""
    monkeypatch.setattr(jobs_module, "MAX_LOG_LINES", 4)
    job = store.submit(SPEC)
    store.claim("w1", LEASE_SECONDS)
    store.append_log(job.id, "w1", ["1", "2", "3"])
    store.append_log(job.id, "w1", ["4", "5", "6"])
    store.append_log(job.id, "w1", ["7"])
    assert [line.line for line in store.logs(job.id)] == [
        "1",
        "2",
        "3",
        "[The log ends here: 4 lines are kept.]",
    ]


def test_progress_is_the_last_event_of_each_kind(store: JobStore) -> None:
    job = store.submit(SPEC)
    store.claim("w1", LEASE_SECONDS)
    store.append_event(job.id, "w1", "train", {"step": 1, "loss": 0.7})
    store.append_event(job.id, "w1", "evaluation", {"step": 1, "metrics": {"auc": 0.5}})
    store.append_event(job.id, "w1", "train", {"step": 2, "loss": 0.6})
    assert store.get(job.id).progress == {
        "train": {"step": 2, "loss": 0.6},
        "evaluation": {"step": 1, "metrics": {"auc": 0.5}},
    }
    assert [(event.number, event.kind) for event in store.events(job.id, after=1)] == [
        (2, "evaluation"),
        (3, "train"),
    ]
    assert store.events(job.id, after=2)[0].fields == {"step": 2, "loss": 0.6}


def test_workers_are_known_while_they_are_seen(store: JobStore) -> None:
    store.worker_seen("w2", None)
    store.worker_seen("w1", None)
    store.worker_seen("w1", "census-1")
    assert [(worker.name, worker.job) for worker in store.workers()] == [("w1", "census-1"), ("w2", None)]
    assert store.workers(seen_within_seconds=-1) == []
    store.worker_gone("w1")
    assert [worker.name for worker in store.workers()] == ["w2"]


def test_migrations_make_the_tables_the_code_has(store: JobStore, database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = database.connect(database_url)

    def ours(thing: object, name: str | None, kind: str, *_: object) -> bool:
        return kind != "table" or (str(name).startswith("trainer_") and name != VERSION_TABLE)

    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "include_object": ours}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    update = sa.text("UPDATE trainer_jobs SET state = 'running' WHERE id = :id")
    job = store.submit(SPEC)
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError, match="running_is_leased"):
        connection.execute(update, {"id": job.id})
    engine.dispose()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"file": "/etc/passwd.py"}, "file must be a Python file inside the bundle"),
        ({"file": "../a.py"}, "file must be a Python file inside"),
        ({"file": "a.txt"}, r"such as 'experiment.py'. Received: 'a.txt'"),
        ({"function": "import"}, "function must be the name of a function in the file. Received: 'import'"),
        ({"function": "a.b"}, "function must be"),
        ({"params": [1]}, r"params must be a JSON object. Received: \[1\]"),
        ({"params": {1: 2}}, "params must be a JSON object"),
        ({"params": {"rate": float("nan")}}, r"params must be a JSON object \(Out of range float"),
        ({"params": {"units": {1, 2}}}, r"params must be a JSON object \(Object of type set"),
        ({"promote": "production"}, "model must be given to promote its new version to 'production'"),
        ({"model": ""}, "model must be a name that matches .*, or left out. Received: ''"),
        ({"model": "m", "promote": "1"}, "promote must be a name that matches"),
        ({"file": "a\0.py"}, "file must be a Python file inside"),
        ({"name": "n" * 201}, "name must be plain text of at most 200 characters"),
        ({"function": "f" * 201}, "function must be plain text of at most 200 characters"),
        ({"source_revision": "a\0b"}, "source_revision must be plain text"),
        (
            {"run_config": {"model_dir": "/"}},
            "run_config must be an object with any of keep_",
        ),
        ({"run_config": {"tf_random_seed": "1"}}, r"run_config\['tf_random_seed'\] must be a whole number"),
        ({"run_config": {"tf_random_seed": True}}, "must be a whole number, 0 or more. Received: True"),
        (
            {"run_config": {"save_checkpoints_secs": 1, "save_checkpoints_steps": 1}},
            "save_checkpoints_secs or save_checkpoints_steps, not both",
        ),
    ],
)
def test_bad_job_is_refused_with_the_rule(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as caught:
        JobSpec(**{"file": "experiment.py", **fields})  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_job_id_is_fit_for_paths_and_unique() -> None:
    assert new_job_id("Flights: wide & deep / v2").startswith("flights-wide-deep-v2-")
    assert new_job_id("../..").startswith("job-")
    assert len({new_job_id("a") for _ in range(100)}) == 100
