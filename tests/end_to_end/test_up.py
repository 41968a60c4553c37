"""`appliance up` with everything embedded: the main job, a killed trainer, mistakes, and the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from appliance.client import Client, ClientError, Job
from registry import Registry
from registry.webhooks import verify
from tests.end_to_end.main_job import EXPERIMENT, MODEL, MainJob
from tests.end_to_end.processes import Process, is_alive, running, wait_until
from tests.registry.receiver import Server

COMMAND = [sys.executable, "-m", "appliance.cli"]
FREE_PORTS = {"APPLIANCE_REST_PORT": "0", "APPLIANCE_GRPC_PORT": "0"}


@dataclass
class Appliance:
    """A running appliance and a user of it."""

    home: Path
    process: Process
    client: Client
    main_job: MainJob

    def child(self, command: str) -> psutil.Process:
        """Return the process of `appliance gateway` or `appliance trainer`."""
        found = [entry for entry in self.process.family()[1:] if command in entry.cmdline()[-3:]]
        assert len(found) == 1, found
        return found[0]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a user."""
        return run_command(*arguments, environment={"APPLIANCE_URL": self.client.url})


def run_command(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `appliance` to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """An appliance in a scratch home; a worker that is silent loses its job after three seconds."""
    folder = tmp_path_factory.mktemp("up")
    environment = {
        "APPLIANCE_HOME": str(folder / "home"),
        "APPLIANCE_LEASE_SECONDS": "3",
        "APPLIANCE_WEBHOOK_PRIVATE_ADDRESSES": "true",
        **FREE_PORTS,
    }
    with running("up", [*COMMAND, "up"], environment, folder) as process:
        wait_until(lambda: "Stop it with Ctrl-C." in process.output, "the appliance is up", process)
        places = json.loads((folder / "home" / "gateway.json").read_text())
        with Client(places["url"], token="") as client:
            yield Appliance(folder / "home", process, client, MainJob(client, places["grpc"]))


def test_up_says_where_everything_is(up: Appliance) -> None:
    said = up.process.output
    assert f"The appliance is up at {up.client.url}." in said
    assert str(up.home) in said
    assert (up.home / "logs" / "gateway.log").is_file()


def test_second_up_on_the_same_home_is_refused(up: Appliance) -> None:
    second = run_command("up", "--home", str(up.home), environment=FREE_PORTS)
    assert second.returncode == 8
    assert second.stderr == (
        f"error: An appliance is already running on '{up.home}' (process {up.process.popen.pid}). "
        "Stop it, or give another folder with --home.\n"
    )


def test_running_appliance_tells_webhooks(up: Appliance) -> None:
    server = Server()
    try:
        hook = up.client.add_webhook(server.receiver.url, kinds=["model.created"])
        with Registry(f"sqlite:///{up.home / 'appliance.db'}", up.home / "models") as registry:
            registry.create_model("told")
        (request,) = server.receiver.wait_for(lambda got: len(got) == 1)
        assert request.event["model"] == "told"
        assert verify(hook.secret, request.body, request.headers["Appliance-Signature"])
        up.client.remove_webhook(hook.id)
    finally:
        server.close()


def test_main_job_goes_through_the_embedded_appliance(up: Appliance) -> None:
    up.main_job.run()


def test_mistakes_are_told(up: Appliance) -> None:
    up.main_job.assert_mistakes_are_told()
    shown = up.run("predict", MODEL, "--instances", '[{"z": [1.0]}]')
    assert shown.returncode == 1
    assert shown.stderr == (
        "error: Failed to process element: 0 key: z of 'instances' list. Error: INVALID_ARGUMENT: "
        "JSON object: does not have named input: z. Inputs: x.\n"
    )
    assert shown.stdout == ""


def test_version_that_will_not_load_is_put_back(up: Appliance, tmp_path: Path) -> None:
    """The one that serves goes on serving; the person who promoted hears the loader's reason."""
    (tmp_path / "saved_model.pb").write_bytes(b"no graph at all")
    with Registry(f"sqlite:///{up.home / 'appliance.db'}", up.home / "models") as registry:
        broken = registry.publish(MODEL, tmp_path).version
    before = up.client.labels(MODEL), up.main_job.slope()
    shown = up.run("registry", "promote", MODEL, str(broken), "--force", "--reason", "to see it fail")
    assert shown.returncode == 4
    assert shown.stderr.startswith(f"error: Version {broken} of model 'line' was promoted and put back: ")
    assert (up.client.labels(MODEL), up.main_job.slope()) == before
    assert [move.action for move in up.client.history(MODEL)[:2]] == ["undo", "promote"]


def test_experiment_that_raises_fails_with_its_own_words(up: Appliance) -> None:
    """The job's error is the last line of the user's traceback, which its log has; the worker goes on."""
    shown = up.run("train", str(EXPERIMENT), "--param", "fail=no rows for 2014", "--watch")
    job = up.client.jobs(limit=1)[0]
    assert shown.returncode == 7
    hint = f"(`appliance jobs logs {job.id}` has its log)"
    assert shown.stderr == f"error: job {job.id} failed: ValueError: no rows for 2014 {hint}\n"
    log = up.run("jobs", "logs", job.id).stdout
    assert "Traceback (most recent call last):" in log
    assert 'raise ValueError(params["fail"])' in log


def held_job(up: Appliance, file: Path) -> Job:
    """Submit a job that stands still at step 30, after its checkpoint of step 20, until `file` exists."""
    job = up.client.submit(
        EXPERIMENT,
        params={"slope": 4.0, "steps": 60, "hold_at": 30, "hold_file": str(file)},
        run_config={"save_checkpoints_steps": 20, "log_step_count_steps": 10},
    )
    wait_until(
        lambda: up.client.job(job).progress.get("checkpoint", {}).get("step") == 20,
        "the job has a checkpoint",
        up.process,
    )
    return job


def test_killed_trainer_is_started_again_and_its_job_goes_on(up: Appliance, tmp_path: Path) -> None:
    job = held_job(up, tmp_path / "go")
    trainer = up.child("trainer")
    task = trainer.children(recursive=True)
    assert task
    trainer.kill()
    psutil.wait_procs([trainer, *task], timeout=60)
    assert not any(is_alive(process) for process in task), "the job's process outlives its trainer"
    (tmp_path / "go").touch()
    ended = up.client.watch(job, show="none")
    log = [line.line for line in up.client.logs(job)]
    assert (ended.state, ended.step, ended.attempts) == ("succeeded", 60, 2), "\n".join(log)
    begun = [line for line in log if line.startswith("training begins at step")]
    assert begun == ["training begins at step 0", "training begins at step 20"]
    assert up.child("trainer").pid != trainer.pid


def test_killed_gateway_is_started_again_on_its_ports(up: Appliance) -> None:
    before = up.main_job.slope()
    gateway = up.child("gateway")
    gateway.kill()
    psutil.wait_procs([gateway], timeout=60)

    def answers() -> bool:
        try:
            return up.main_job.slope() == before
        except ClientError:
            return False

    wait_until(answers, "predictions are answered again", up.process)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"APPLIANCE_HOME": "{file}/home"},
            "Cannot write to the folder '{file}/home': Not a directory. Set APPLIANCE_HOME."),
        ({"APPLIANCE_REST_PORT": "{port}"}, "Cannot listen on 127.0.0.1:{port}: Address already in use. "
            "Stop what uses the port, or set APPLIANCE_REST_PORT."),
        ({"APPLIANCE_GRPC_PORT": "{port}"}, "Cannot listen on 127.0.0.1:{port}: Address already in use. "
            "Stop what uses the port, or set APPLIANCE_GRPC_PORT."),
        ({"APPLIANCE_DATABASE_URL": "postgresql://nobody:secret@127.0.0.1:1/none"},
            "Cannot use the database postgresql+psycopg://nobody:***@127.0.0.1:1/none: "),
        ({"APPLIANCE_HOST": "0.0.0.0"}, "Cannot listen on '0.0.0.0' without a token: "),
        ({"APPLIANCE_RUNTIME": "cloud"},
            "APPLIANCE_RUNTIME: Input should be 'embedded' or 'sidecar' (given 'cloud')"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["up", "gateway"])
def test_bad_start_is_one_line_and_exit_code_8(
    tmp_path: Path, command: str, environment: dict[str, str], message: str
) -> None:
    (tmp_path / "file").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        facts = {"file": tmp_path / "file", "port": taken.getsockname()[1]}
        variables = {name: value.format(**facts) for name, value in environment.items()}
        defaults = {"APPLIANCE_HOME": str(tmp_path / "home"), **FREE_PORTS}
        failed = run_command(command, environment={**defaults, **variables})
    assert failed.returncode == 8, failed.stderr
    assert failed.stderr.startswith("error: " + message.format(**facts))
    assert failed.stderr.count("\n") == 1
    assert failed.stdout == ""


def test_sigterm_stops_everything_even_a_running_job(up: Appliance, tmp_path: Path) -> None:
    """The job goes back into the queue, for the next start to go on with."""
    job = held_job(up, tmp_path / "go")
    family = up.process.family()
    assert len(family) > 3
    (tmp_path / "go").touch()
    assert up.process.stop(signal.SIGTERM) == 0, up.process.output
    assert [process for process in family if is_alive(process)] == []
    assert up.process.output.endswith("Stopped.\n")
    assert not (up.home / "gateway.json").exists()
    kept = run_command(
        "registry",
        "label",
        MODEL,
        "--json",
        environment={"APPLIANCE_HOME": str(up.home), "APPLIANCE_URL": ""},
    )
    assert json.loads(kept.stdout)["production"] == 1
    assert job.id
