"""Workers, with real processes: jobs that fail, crash, are cancelled, or lose their worker."""

from __future__ import annotations

import errno
import importlib.metadata
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
import sqlalchemy as sa

from appliance.bundle import make_bundle
from appliance.settings import Settings
from appliance.trainer.job import Job, JobFolder, JobSpec, new_job_id
from appliance.trainer.jobs import JobStore
from appliance.trainer.task import Teller, attempt
from appliance.trainer.task_spec import TaskSpec
from appliance.trainer.worker import Worker
from registry import Registry
from tests.waiting import wait_until

DEADLINE_SECONDS = 120


class House:
    """A queue in a folder, with what a gateway would do to it."""

    def __init__(self, home: Path, **settings: object) -> None:
        # The lease is as long as a busy machine may keep a worker from renewing it.
        given = {"home": home / "house", "lease_seconds": 6, "stop_grace_seconds": 90, **settings}
        self.settings = Settings(**given)  # type: ignore[arg-type]
        self.store = JobStore(self.settings.database_url)
        self._sources = home

    def submit(self, source: str, *, name: str = "experiment.py", **spec: object) -> Job:
        """Submit a job of one file."""
        job = new_job_id("job")
        path = self._sources / job / name
        path.parent.mkdir()
        path.write_text(source)
        folder = JobFolder(self.settings.jobs_root / job)
        folder.root.mkdir(parents=True)
        folder.bundle.write_bytes(make_bundle(path).data)
        return self.store.submit(JobSpec(**{"file": name, **spec}), job=job)  # type: ignore[arg-type]

    def log(self, job: Job) -> list[str]:
        return [line.line for line in self.store.logs(job.id)]

    def wait(self, job: Job, condition: Callable[[Job], object] = lambda job: job.ended) -> Job:
        """Return the job once it meets the condition."""
        wait_until(
            lambda: condition(self.store.get(job.id)), lambda: "\n".join(self.log(job)), DEADLINE_SECONDS
        )
        return self.store.get(job.id)

    @contextmanager
    def worker(self, **settings: object) -> Iterator[Worker]:
        """A worker in a thread of this process."""
        worker = Worker(self.settings.model_copy(update=settings))
        stop = threading.Event()
        thread = threading.Thread(target=worker.run, args=(stop,))
        thread.start()
        try:
            yield worker
        finally:
            stop.set()
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()

    @contextmanager
    def worker_process(self) -> Iterator[subprocess.Popen[bytes]]:
        """A worker as `appliance trainer` runs it."""
        settings = {f"APPLIANCE_{name}": str(value) for name, value in self.settings.model_dump().items()}
        command = (
            "from appliance.settings import Settings; from appliance.trainer import service; "
            "service.main(Settings())"
        )
        process = subprocess.Popen([sys.executable, "-c", command], env={**os.environ, **settings})
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.store.close()


def gone(pid: int) -> bool:
    """Whether the process runs no more; one that nobody waits for stays as a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_bad_file_fails_its_job_in_its_own_words_and_the_worker_goes_on(house: House) -> None:
    """The log shows the traceback from the user's file on; `error` is its last line."""
    raises = house.submit("def rate():\n    raise ValueError('bad')\n\nrate()\n")
    syntax = house.submit("def experiment(run_config, params)\n    pass\n")
    chained = house.submit(
        "try:\n    int('x')\nexcept ValueError as e:\n    raise OSError('no\\nway') from e\n"
    )
    nameless = house.submit("import os\n\ndef experiments(): pass\n")
    missing = house.submit("", file="other.py")
    exits = house.submit("print('bye')\nraise SystemExit(3)\n")
    shadow = house.submit("", name="json.py")
    broken = house.submit("")
    JobFolder(house.settings.jobs_root / broken.id).bundle.write_bytes(b"no archive")
    with house.worker():
        failed = {job.id: house.wait(job) for job in house.store.list()}
    assert {job.state for job in failed.values()} == {"failed"}
    assert {job.attempts for job in failed.values()} == {1}
    assert failed[raises.id].error == "ValueError: bad"
    assert house.log(raises) == [
        "Traceback (most recent call last):",
        '  File "experiment.py", line 4, in <module>',
        "    rate()",
        '  File "experiment.py", line 2, in rate',
        "    raise ValueError('bad')",
        "ValueError: bad",
    ]
    assert failed[syntax.id].error == "SyntaxError: expected ':'"
    assert house.log(syntax) == [
        '  File "experiment.py", line 1',
        "    def experiment(run_config, params)",
        "                                      ^",
        "SyntaxError: expected ':'",
    ]
    assert failed[chained.id].error == "OSError: no"
    assert house.log(chained) == [
        "Traceback (most recent call last):",
        '  File "experiment.py", line 2, in <module>',
        "    int('x')",
        "ValueError: invalid literal for int() with base 10: 'x'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "experiment.py", line 4, in <module>',
        r"    raise OSError('no\nway') from e",
        "OSError: no",
        "way",
    ]
    assert house.log(nameless) == [failed[nameless.id].error]
    assert failed[nameless.id].error == (
        "experiment.py has no function 'experiment'; it has: experiments. "
        "Write `def experiment(run_config, params):` that returns an Experiment."
    )
    assert failed[missing.id].error == "The bundle has no file 'other.py'."
    assert failed[shadow.id].error == "json.py has the name of the module 'json'. Give it another name."
    assert failed[exits.id].error == "SystemExit: 3"
    assert house.log(exits)[0] == "bye"
    assert str(failed[broken.id].error).startswith("The bundle is not a whole tar.gz archive")


def test_process_that_dies_is_tried_again_and_given_up(house: House) -> None:
    killed = house.submit("import os\nprint('no line end', end='')\nos.kill(os.getpid(), 9)\n")
    left = house.submit("import os\nos._exit(7)\n")
    with house.worker():
        killed, left = house.wait(killed), house.wait(left)
    assert (killed.state, killed.attempts, killed.crashes) == ("failed", 3, 3)
    assert killed.error == "gave up after 3 crashes; the last: its process was killed by signal 9 (Killed)"
    assert left.error == "gave up after 3 crashes; the last: its process ended with exit code 7"
    assert house.log(killed) == ["no line end"] * 3


def test_processes_of_a_job_die_with_their_worker(house: House) -> None:
    """Else two processes would train in one folder once the lease has run out."""
    job = house.submit("import os, threading\nprint(os.getpid())\nthreading.Event().wait()\n")
    with house.worker_process() as process:
        house.wait(job, lambda job: house.log(job))
        assert [worker.job for worker in house.store.workers()] == [job.id]
        process.send_signal(signal.SIGKILL)
        process.wait()
        (pid,) = house.log(job)
        house.wait(job, lambda job: gone(int(pid)))
    # Its lease runs out, the next worker takes it up, and kills what will not stop.
    with house.worker(stop_grace_seconds=0.1):
        house.wait(job, lambda job: len(house.log(job)) == 2)
        house.store.request_cancel(job.id)
        cancelled = house.wait(job)
    assert (cancelled.state, cancelled.attempts, cancelled.crashes) == ("cancelled", 2, 1)
    assert gone(int(house.log(job)[1]))


def test_job_and_worker_outlive_a_lost_database(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the job says meanwhile is kept, and its lease holds."""
    house = House(tmp_path, database_url=postgres_url, lease_seconds=DEADLINE_SECONDS)
    away, back = tmp_path / "away", tmp_path / "back"
    os.mkfifo(away)
    os.mkfifo(back)
    # Opening a FIFO waits until the other side has opened it too.
    job = house.submit(
        f"print('before')\nopen({str(away)!r}).close()\n"
        f"for number in range(100):\n    print(number)\nopen({str(back)!r}).close()\n"
        "print('after')\nraise SystemExit('told all')\n"
    )
    with house.worker():
        house.wait(job, lambda job: house.log(job))
        with unreachable(postgres_url):
            away.open("w").close()
            wait_until(lambda: "database_unavailable" in caplog.messages, seconds=DEADLINE_SECONDS)
            back.open("w").close()
        ended = house.wait(job)
    log = house.log(job)
    house.store.close()
    assert (ended.error, ended.attempts) == ("SystemExit: told all", 1)
    assert log[:102] == ["before", *map(str, range(100)), "after"]


@contextmanager
def unreachable(postgres_url: str) -> Iterator[None]:
    """Hide the server's socket, and end every connection to the database."""
    url = sa.make_url(postgres_url)
    socket_path = Path(str(url.query["host"])) / ".s.PGSQL.5432"
    hidden = socket_path.with_name("hidden")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    server = postgres_url.replace(f"/{url.database}?", "/postgres?")
    with psycopg.connect(server, autocommit=True) as connection:
        socket_path.rename(hidden)
        try:
            connection.execute(end, [url.database])
            yield
        finally:
            hidden.rename(socket_path)


LINE = """
import os, threading
import tensorflow as tf
from appliance import estimator

def data():
    return tf.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[2.0], [4.0]])).repeat()

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [1, 1], initializer=tf.compat.v1.zeros_initializer())
    y = tf.matmul(features["x"], weight)
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput({"y": y})}
        return estimator.EstimatorSpec(mode, predictions={"y": y}, export_outputs=outputs)
    loss = tf.reduce_mean(tf.square(y - labels))
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    error = tf.compat.v1.metrics.mean_absolute_error(labels, y)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops={"error": error})

class Hold(estimator.SessionRunHook):
    '''Says where training starts, and does not let it go beyond `step` unless the file `go` is there.'''
    def __init__(self, step, go):
        self.last, self.go = step, go
    def begin(self):
        self.variable = tf.compat.v1.train.get_global_step()
    def after_create_session(self, session, coord):
        self.step = session.run(self.variable)
        print("training starts at step", self.step)
    def before_run(self, run_context):
        if self.step == self.last and not os.path.exists(self.go):
            threading.Event().wait()
        self.step += 1

def inputs():
    return estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.compat.v1.placeholder(tf.float32, [None, 1], name="x")})()

def experiment(run_config, params):
    if params.get("bad"):
        return params["bad"]
    return estimator.Experiment(
        estimator.Estimator(model_fn, config=run_config), data, data, train_steps=params["steps"],
        train_monitors=[Hold(params.get("hold_at"), params.get("go"))], eval_steps=1, eval_delay_secs=0,
        continuous_eval_throttle_secs=0,
        export_strategies=[estimator.make_export_strategy(inputs)])

def fails_in_training(run_config, params):
    def data():
        raise ValueError("bad")
    return estimator.Experiment(estimator.Estimator(model_fn, config=run_config), data, data)


def data_fingerprint(params):
    return f"x of {params.get('steps')} steps"
"""


def line_of(text: str) -> int:
    return LINE[: LINE.index(text)].count("\n") + 1


def starts(log: list[str]) -> list[int]:
    return [int(line.split()[-1]) for line in log if line.startswith("training starts at step")]


def checkpoint(job: Job) -> int:
    return int(job.progress.get("checkpoint", {"step": 0})["step"])


def test_job_of_a_killed_worker_goes_on_from_its_checkpoint_and_registers_once(
    house: House, tmp_path: Path
) -> None:
    with Registry(house.settings.database_url, house.settings.artifact_root) as registry:
        registry.create_model("line")
        registry.set_gate("line", "production", ["error <= -1"], actor="test")
        job = house.submit(
            LINE,
            params={"steps": 400, "hold_at": 200, "go": str(tmp_path / "go")},
            run_config={"save_checkpoints_steps": 10},
            model="line",
            promote="production",
            source_revision="3f2a",
        )
        with house.worker_process() as process:
            house.wait(job, lambda job: checkpoint(job) >= 20)
            process.send_signal(signal.SIGKILL)
            process.wait()
        told = checkpoint(house.store.get(job.id))
        (tmp_path / "go").touch()
        with house.worker():
            done = house.wait(job)
        log = house.log(job)
        assert (done.state, done.attempts, done.crashes, done.error) == ("succeeded", 2, 1, None), log
        first, second = starts(log)
        assert first == 0
        assert told <= second < 400
        assert second % 10 == 0

        (version,) = registry.versions("line")
        assert done.result["version"] == version.version == 1
        assert done.result["step"] == version.step == 400
        assert done.result["metrics"] == version.metrics
        assert version.metrics["error"] < 0.5
        assert (version.job, version.source_revision, version.params["steps"]) == (job.id, "3f2a", 400)
        assert version.data_fingerprint == "x of 400 steps"
        assert version.libraries["tensorflow"] == importlib.metadata.version("tensorflow")
        tensor = {"dtype": "float32", "shape": [None, 1]}
        assert version.signatures == {
            "serving_default": {
                "method_name": "tensorflow/serving/predict",
                "inputs": {"x": tensor},
                "outputs": {"y": tensor},
            }
        }
        assert registry.labels("line") == {}
        assert "error" in done.result["promotion_refused"]
        assert [event.kind for event in house.store.events(job.id) if event.kind == "export"]

        # A worker that died after publishing told nobody: the next attempt finds the version.
        registry.set_gate("line", "production", [], actor="test")
        settings = house.settings
        folder = str(settings.jobs_root / job.id)
        task = TaskSpec(job.id, job.spec, folder, settings.database_url, settings.artifact_root)
        for _ in range(2):
            outcome = attempt(task, Teller(io.StringIO()), threading.Event())
            assert (outcome.end, outcome.result["version"]) == ("succeeded", 1)
            assert outcome.result["promoted_to"] == "production"
        assert len(registry.versions("line")) == len(registry.history("line", "production")) == 1


def test_stop_after_the_last_step_keeps_the_result_from_being_promoted(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel that comes while the last checkpoint is evaluated; what trains and evaluates is left out."""
    settings, stop = house.settings, threading.Event()
    (tmp_path / "saved_model.pb").write_bytes(b"a graph")
    export = SimpleNamespace(path=str(tmp_path), step=30, metrics={})
    result = SimpleNamespace(stopped=False, step=30, evaluation={}, exports=(export,))

    def train(*_: object) -> SimpleNamespace:
        stop.set()
        return result

    monkeypatch.setattr("appliance.trainer.task._train", train)
    monkeypatch.chdir(tmp_path)
    code = "def experiment(run_config, params): ...\n"
    job = house.submit(code, model="line", promote="production")
    folder = str(settings.jobs_root / job.id)
    task = TaskSpec(job.id, job.spec, folder, settings.database_url, settings.artifact_root)
    with Registry(settings.database_url, settings.artifact_root) as registry:
        outcome = attempt(task, Teller(io.StringIO()), stop)
        assert (outcome.end, outcome.result) == ("stopped", {"step": 30})
        assert registry.models() == []


def test_job_that_finds_no_room_to_unpack_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    settings, job = house.settings, house.submit("", model="line")
    Registry(settings.database_url, settings.artifact_root).close()
    monkeypatch.setattr("appliance.trainer.task.unpack_bundle", fill)
    folder = str(settings.jobs_root / job.id)
    task = TaskSpec(job.id, job.spec, folder, settings.database_url, settings.artifact_root)
    outcome = attempt(task, Teller(io.StringIO()), threading.Event())
    assert outcome.end == "crashed"
    assert "Cannot unpack the job's bundle" in outcome.error
    assert "No space left on device. Make room there" in outcome.error


def test_stopped_job_keeps_a_checkpoint_whether_it_is_to_go_on_or_not(house: House) -> None:
    """SIGTERM to the worker puts its job back into the queue; cancelling ends it. Neither loses a step."""
    job = house.submit(LINE, params={"steps": 1_000_000_000})
    with house.worker_process() as process:
        house.wait(job, lambda job: "train" in job.progress)
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_SECONDS)
        assert process.returncode == 0
    released = house.store.get(job.id)
    assert (released.state, released.crashes, released.worker) == ("queued", 0, None)
    assert checkpoint(released) >= released.progress["train"]["step"] > 0
    assert house.store.workers() == []
    with house.worker():
        house.wait(job, lambda job: len(starts(house.log(job))) == 2 and checkpoint(job) >= 0)
        house.wait(job, lambda job: job.progress["train"]["step"] > checkpoint(released))
        house.store.request_cancel(job.id)
        cancelled = house.wait(job)
    assert (cancelled.state, cancelled.attempts) == ("cancelled", 2)
    assert starts(house.log(job)) == [0, checkpoint(released)]
    told = re.compile(r"INFO appliance.estimator: training_done step=\d+ loss=\d")
    assert any(told.match(line) for line in house.log(job)), "the log tells neither step nor loss"
    assert cancelled.result["step"] == checkpoint(cancelled) > checkpoint(released)
    model = JobFolder(house.settings.jobs_root / job.id).model
    assert (model / f"model.ckpt-{checkpoint(cancelled)}.index").exists()


def test_experiment_that_is_wrong_fails_its_job(house: House) -> None:
    bad = house.submit(LINE, params={"bad": [1, 2]})
    raises = house.submit(LINE, function="fails_in_training")
    with house.worker():
        failed = {job.id: house.wait(job) for job in (bad, raises)}
    assert failed[bad.id].error == (
        "experiment() of experiment.py must return an Experiment. Received: [1, 2]."
    )
    assert failed[raises.id].error == "ValueError: bad"
    shown = house.log(raises)
    assert shown[shown.index("Traceback (most recent call last):") :] == [
        "Traceback (most recent call last):",
        f'  File "experiment.py", line {line_of("raise ValueError")}, in data',
        '    raise ValueError("bad")',
        "ValueError: bad",
    ]
