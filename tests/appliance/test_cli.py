"""The `appliance` command: what it prints, how it fails, how fast it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.cli import cli
from appliance.cli.main import COMMANDS
from appliance.settings import Settings
from tests.appliance.api_server import House, running_house

Run = Callable[..., Result]
HEAVY = ["tensorflow", "fastapi", "sqlalchemy", "alembic", "pandas", "grpc", "numpy", "httpx", "pydantic"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest.fixture
def run(house: House) -> Run:
    """Runs a command against the server, and expects the exit code given as `exits`."""

    def invoke(*arguments: str, exits: int = 0, **environment: str | None) -> Result:
        variables = {"APPLIANCE_URL": house.url, **environment}
        result = CliRunner().invoke(cli, list(arguments), env=variables)
        assert result.exit_code == exits, result.output
        return result

    return invoke


@pytest.fixture
def direct(house: House) -> dict[str, str | None]:
    """The environment of a command that works on the database itself."""
    return {"APPLIANCE_URL": None, "APPLIANCE_HOME": str(house.home)}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "experiment.py"
    file.write_text("def experiment(run_config, params): ...\n")
    return file


@pytest.mark.parametrize("command", [["-m", "appliance.cli", "--help"], ["-c", "import appliance.client"]])
def test_start_imports_nothing_heavy(command: list[str]) -> None:
    """The budget of 0.3 s is kept by what is not imported; benchmarks measure it."""
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=True, timeout=60
    )
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "appliance" in imported
    assert imported.isdisjoint(HEAVY)


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_train_submits_a_job_with_its_parameters(run: Run, house: House, experiment: Path) -> None:
    shown = run(
        "train", str(experiment), "--model", "m", "--promote", "production",
        "--param", "steps=5", "--param", "name=wide", "--param", "layers=[8, 4]",
        "--run-config", "tf_random_seed=7", "--json",
    )  # fmt: skip
    job = json.loads(shown.stdout)
    assert job["params"] == {"steps": 5, "name": "wide", "layers": [8, 4]}
    assert job["run_config"] == {"tf_random_seed": 7}
    assert house.jobs.get(job["id"]).spec.promote == "production"
    assert "id            " in run("train", str(experiment)).stdout
    wrong = run("train", str(experiment), "--param", "steps", exits=2)
    assert "Cannot read --param 'steps': write KEY=VALUE." in wrong.stderr
    missing = run("train", "absent.py", exits=1)
    assert missing.stderr == "error: Cannot bundle 'absent.py': there is no such file.\n"


def end(house: House, job: str, finish: Callable[[str], Any]) -> None:
    """Be the worker that claims and ends a job."""
    while (claimed := house.jobs.claim("worker", 60)) is not None:
        if claimed.id == job:
            finish(job)
            return
        house.jobs.finish(claimed.id, "worker", {})
    raise AssertionError(f"job {job} is not in the queue")


def submit(run: Run, experiment: Path, *arguments: str) -> str:
    return str(json.loads(run("train", str(experiment), *arguments, "--json").stdout)["id"])


def test_failed_job_is_told_in_one_line(run: Run, house: House, experiment: Path) -> None:
    job = submit(run, experiment)
    house_log = ["Traceback (most recent call last):", "ValueError: no rows"]

    def fail(job: str) -> None:
        house.jobs.append_log(job, "worker", house_log)
        house.jobs.fail(job, "worker", "ValueError: no rows")

    end(house, job, fail)
    watched = run("jobs", "watch", job, exits=7)
    assert watched.stderr == (
        f"error: job {job} failed: ValueError: no rows (`appliance jobs logs {job}` has its log)\n"
    )
    assert run("jobs", "logs", job).stdout.splitlines() == house_log
    assert (
        json.loads(run("jobs", "logs", job, "--json").stdout.splitlines()[1])["line"] == "ValueError: no rows"
    )
    shown = run("jobs", "show", job).stdout.splitlines()
    assert "state             failed" in shown
    assert "error             ValueError: no rows" in shown


def test_job_that_succeeds_is_told_with_what_came_of_it(run: Run, house: House, experiment: Path) -> None:
    job = submit(run, experiment, "--model", "m")
    result = {"step": 5, "version": 2, "promoted_to": "production"}
    end(house, job, lambda job: house.jobs.finish(job, "worker", result))
    watched = run("jobs", "watch", job)
    assert watched.stdout == f"job {job} succeeded; registered as version 2 of m; promoted to production\n"
    header, *rows = run("jobs", "list", "--state", "succeeded").stdout.splitlines()
    assert header.split()[:5] == ["job", "state", "model", "step", "version"]
    assert rows[0].split()[:6] == [job, "succeeded", "m", "5", "2", "production"]
    assert json.loads(run("jobs", "list", "--limit", "1", "--json").stdout)[0]["id"] == job


def test_promotion_refused_after_training_is_an_exit_code_of_its_own(
    run: Run, house: House, experiment: Path
) -> None:
    job = submit(run, experiment, "--model", "m", "--promote", "production")
    result = {"version": 3, "promotion_refused": "auc is 0.65, wanted at least 0.69"}
    end(house, job, lambda job: house.jobs.finish(job, "worker", result))
    watched = run("jobs", "watch", job, exits=4)
    assert watched.stderr == "error: not promoted to production: auc is 0.65, wanted at least 0.69\n"


def test_interrupted_watch_says_that_the_job_goes_on(
    run: Run, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("appliance.client.Client.watch", interrupt)
    job = submit(run, experiment)
    stopped = run("jobs", "watch", job, exits=130)
    assert stopped.stderr.startswith("error: interrupted; the job goes on (")
    assert f"`appliance jobs cancel {job}` ends it" in stopped.stderr
    assert json.loads(run("jobs", "show", job, "--json").stdout)["state"] == "queued"


def test_cancelled_job_is_shown(run: Run, experiment: Path) -> None:
    job = submit(run, experiment)
    assert json.loads(run("jobs", "cancel", job, "--json").stdout)["state"] == "cancelled"
    assert run("jobs", "watch", job, exits=7).stderr.startswith(f"error: job {job} cancelled")


@pytest.mark.parametrize("way", ["http", "database"])
def test_registry_commands_work_with_and_without_a_server(
    run: Run, house: House, direct: dict[str, str | None], way: str
) -> None:
    """The same commands print the same, over HTTP and on the database."""
    environment = direct if way == "database" else {}
    model = f"flights-{way}"
    house.publish(model, metrics={"auc": 0.70, "global_step": 10}, step=10)
    house.publish(model, metrics={"auc": 0.65}, step=20)

    def registry(*arguments: str, exits: int = 0) -> Result:
        return run("registry", *arguments, exits=exits, **environment)

    assert registry("gate", model).stdout == f"Label production of {model} has no gate.\n"
    assert registry("gate", model, "--rule", "auc >= 0.69").stdout.splitlines() == ["rule", "auc >= 0.69"]
    promoted = registry("promote", model, "1", "--reason", "first", "--wait", "0")
    assert promoted.stdout == f"production of {model}: no version -> version 1\n"
    refused = registry("promote", model, "2", "--wait", "0", exits=4)
    assert refused.stderr.startswith(f"error: Cannot promote version 2 of model '{model}' to 'production': ")
    assert "0.65" in refused.stderr
    assert refused.stderr.count("\n") == 1
    checked = registry("gate", model, "--check", "2", exits=4)
    assert checked.stdout.splitlines()[1].startswith("FAILED")
    registry("promote", model, "2", "--force", "--reason", "trust me", "--wait", "0")
    table = [line.split() for line in registry("list", model).stdout.splitlines()]
    assert table[0][:5] == ["version", "state", "labels", "step", "auc"]
    assert table[1][:5] == ["2", "ready", "production", "20", "0.65"]
    assert table[2][:4] == ["1", "ready", "10", "0.7"]
    assert [row["version"] for row in json.loads(registry("list", model, "--json").stdout)] == [2, 1]
    rolled = registry("rollback", model, "--wait", "0", "--json")
    assert json.loads(rolled.stdout)["to_version"] == 1
    history = json.loads(registry("history", model, "--json").stdout)
    assert [(move["action"], move["to_version"], move["forced"]) for move in history] == [
        ("rollback", 1, False),
        ("promote", 2, True),
        ("promote", 1, False),
    ]
    assert history[0]["actor"]
    assert registry("history", model).stdout.splitlines()[0].split()[:4] == ["id", "at", "label", "action"]
    assert registry("label", model).stdout.splitlines()[1].split() == ["production", "1"]
    assert json.loads(registry("show", model, "production", "--json").stdout)["version"] == 1
    assert "auc=0.7" in registry("show", model, "1").stdout
    assert model in registry("list").stdout
    assert registry("delete", model, "2").stdout == f"deleted version 2 of {model}\n"
    gone = registry("promote", model, "9", "--wait", "0", exits=3)
    assert gone.stderr.startswith(f"error: Cannot find version 9 of model '{model}'; ")


def test_promotion_that_is_not_served_is_an_error(run: Run, house: House) -> None:
    house.publish("unserved")
    house.report("unserved")
    late = run("registry", "promote", "unserved", "1", "--wait", "0.05", exits=1)
    assert late.stdout == "production of unserved: no version -> version 1\n"
    assert late.stderr == "error: version 1 of unserved is not served yet: it may still be loading\n"


def test_migrate_works_on_the_database_only(run: Run, direct: dict[str, str | None]) -> None:
    assert run("registry", "migrate", **direct).stdout == "the database is up to date\n"
    assert "works on the database itself" in run("registry", "migrate", exits=1).stderr


def test_predict_prints_json(run: Run, tmp_path: Path) -> None:
    assert json.loads(run("predict", "m", "--instances", "[1, 2]").stdout) == [2, 4]
    assert json.loads(run("predict", "m", "--inputs", '{"x": [[1.5]]}').stdout) == {"x": [[3.0]]}
    file = tmp_path / "request.json"
    file.write_text('{"instances": [3], "signature_name": "predict"}')
    assert json.loads(run("predict", "m", "--input-file", str(file)).stdout) == [6]
    file.write_bytes(b"\xff\xfe")
    assert "it is no UTF-8" in run("predict", "m", "--input-file", str(file), exits=2).stderr
    wrong = run("predict", "m", "--instances", "[1", exits=2)
    assert "Cannot read --instances as JSON" in wrong.stderr
    assert "Give one of" in run("predict", "m", exits=2).stderr


def test_server_that_is_not_there_and_wrong_settings_are_told_in_one_line(run: Run, tmp_path: Path) -> None:
    absent = run("jobs", "list", "--url", "http://127.0.0.1:1", exits=5)
    assert absent.stderr.startswith("error: Cannot reach the appliance at http://127.0.0.1:1: ")
    assert absent.stderr.count("\n") == 1
    none = {"APPLIANCE_URL": None}
    wrong = run("registry", "list", exits=8, APPLIANCE_REST_PORT="many", **none)
    assert wrong.stderr.startswith("error: APPLIANCE_REST_PORT: Input should be a valid integer")
    (tmp_path / "file").write_text("")
    database = f"sqlite:///{tmp_path}/file/appliance.db"
    unreachable = run("registry", "list", exits=5, APPLIANCE_DATABASE_URL=database, **none)
    assert unreachable.stderr.startswith(f"error: Cannot use the database {database}: ")
    assert unreachable.stderr.count("\n") == 1


def test_fault_of_the_command_itself_shows_no_traceback(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("appliance.client.Client.jobs", lambda *_, **__: {}["absent"])
    fault = run("jobs", "list", exits=1)
    assert fault.stderr == (
        "error: KeyError: 'absent' (this is a fault of the appliance; APPLIANCE_DEBUG=1 shows where)\n"
    )
    with pytest.raises(KeyError):
        CliRunner().invoke(cli, ["jobs", "list"], env={"APPLIANCE_DEBUG": "1"}, catch_exceptions=False)


def test_reference_in_the_docs_is_that_of_the_commands() -> None:
    from appliance.cli.reference import render

    written = Path(__file__).parents[2] / "docs" / "cli.md"
    assert written.read_text() == render(), "run `python -m appliance.cli.reference > docs/cli.md`"


def test_each_setting_is_documented_and_says_its_unit() -> None:
    written = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name, field in Settings.model_fields.items():
        assert field.description, f"{name} has no docstring"
        assert f"| `APPLIANCE_{name.upper()}` |" in written, name
        assert not name.endswith("_seconds") or "seconds" in field.description, name


def test_package_that_is_not_installed_is_named_with_the_remedy(tmp_path: Path) -> None:
    script = "import sys; sys.modules['uvicorn'] = None; from appliance.cli import main; main()"
    settings = {"APPLIANCE_HOME": str(tmp_path), "APPLIANCE_REST_PORT": "0", "APPLIANCE_GRPC_PORT": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", script, "gateway"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 8
    assert "error: The Python package 'uvicorn' is not installed" in ended.stderr
    assert "pip install 'estimator-appliance[serve,train]'" in ended.stderr
