"""What the registry's commands say to bad input and bad places: never a traceback, always what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from appliance.cli import cli
from appliance.cli.registry import registry as group
from registry import database
from tests.appliance.api_server import House, running_house
from tests.appliance.test_upkeep import runner
from tests.registry.writing_process import writing_process

Run = Callable[..., Result]
HUGE = str(10**20)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Model census: version 1 served, then 2; version 3 was never served, 4 is deleted."""
    with running_house(tmp_path_factory.mktemp("house")) as running:
        for _ in range(4):
            running.publish("census", metrics={"auc": 0.7})
        running.registry.promote("census", 1, actor="ada")
        running.registry.promote("census", 2, actor="ada")
        running.registry.delete_version("census", 4, actor="ada")
        yield running


@pytest.fixture(params=["over HTTP", "on the database"])
def run(request: pytest.FixtureRequest, house: House) -> Run:
    return runner(house, request.param)


REFUSALS = [
    ("show nix 1", 3, "Cannot find model 'nix'; registered: census. Make it first, by create_model or by an"),
    ("promote nix 1", 3, "Cannot find model 'nix'"),
    ("show census 9", 3, "Cannot find version 9 of model 'census'; newest registered: 3, 2, 1."),
    ("show census nix", 3, "Cannot find label 'nix' of model 'census'; labels: production."),
    ("promote census nix", 3, "Cannot find label 'nix' of model 'census'"),
    (f"promote census {HUGE}", 3, f"Cannot find version {HUGE} of model 'census'"),
    ("promote census 4", 4, "Cannot use version 4 of model 'census': it is deleted."),
    ("promote census 3 --force", 2, "--force needs a --reason"),
    ("promote census 3 --expect 1", 4, "expected it on version 1, it is on version 2."),
    ("promote census 3 --label a/b", 1, "Cannot ask for 'a/b': it is the name of nothing. Names consist of"),
    ("promote census 3 --label 7th", 1, "Cannot use '7th' as a label name. It must match"),
    ("gate census --check nix", 3, "Cannot find label 'nix'"),
    ("gate census --rule nonsense", 1, "Cannot read the gate rule 'nonsense'. Write it like one of:"),
    ("approve census 9", 3, "Cannot find version 9"),
    ("rollback census --to 3", 4, "version 3 never was production; promote it instead, so that the gate is"),
    ("rollback census --label nix", 4, "no version ever was there (labels of the model: production)."),
    ("label census --remove nix", 3, "Cannot find label 'nix'"),
    ("delete census 2", 4, "it is labelled production; move or remove the label first."),
    ("verify census 9", 3, "Cannot find version 9"),
    ("verify census 4", 4, "it is deleted"),
    (f"history census --before {HUGE}", 1, "Cannot ask the database about a value that it cannot hold"),
    (f"events census --version {HUGE}", 1, "Cannot ask the database about a value that it cannot hold"),
    ("events census --kind nix", 1, "the kinds of events are model.created, "),
    ("tag census --version 9 a=b", 3, "Cannot find version 9"),
    ("list census --where nix", 1, "Cannot read the condition 'nix'. Write it like 'auc > 0.7'"),
    ("list census --order nix", 1, "Cannot order by 'nix'. Order by version, created or metrics.NAME"),
    ("list ..", 1, "Cannot ask for '..': it is the name of nothing."),
    ("compare census 1", 2, "Give two versions or more."),
    ("retention nix --keep-last 1", 3, "Cannot find model 'nix'"),
    ("webhook add nix", 1, "give http://host/path or https://host/path"),
    ("webhook remove 9", 3, "Cannot find webhook 9; there are: none."),
    (f"webhook redeliver {HUGE}", 1, "Cannot ask the database about a value that it cannot hold"),
    (
        "card census 1 --output /nowhere/card.md",
        1,
        "Cannot write the card to '/nowhere/card.md': No such file",
    ),
]


@pytest.mark.parametrize(("command", "code", "told"), REFUSALS, ids=[refusal[0] for refusal in REFUSALS])
def test_refusal_names_the_thing_and_the_remedy(run: Run, command: str, code: int, told: str) -> None:
    result = run(*command.split(), exits=code)
    assert told in result.stderr
    assert "Traceback" not in result.output
    assert "fault of the appliance" not in result.output


def test_promotion_that_lacks_approval_names_the_command_that_gives_it(run: Run, house: House) -> None:
    house.registry.set_gate("census", "guarded", ["approved by another"], actor="ada")
    refused = run("promote", "census", "3", "--label", "guarded", exits=4).stderr
    assert "better version" not in refused
    (command,) = re.findall(r"have somebody else approve it \(`appliance registry (.*?)`\)", refused)
    assert run(*command.split()).output == "approved version 3 of census for guarded\n"


def test_database_that_stays_busy_is_told_with_who_holds_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.01)
    with running_house(tmp_path) as house:
        house.publish("census")
        with writing_process(tmp_path / "appliance.db") as writer:
            told = (
                f"s of waiting, process {writer} holds its write lock. Wait until that process is done, then"
            )
            for way in ("over HTTP", "on the database"):
                result = runner(house, way)("promote", "census", "1", exits=5)
                assert told in result.stderr
                assert result.stderr.startswith("error: Cannot use the database sqlite:///")
            answer = httpx.patch(f"{house.url}/api/v1/models/census", json={"description": "?"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_busy")
            assert told in answer.json()["error"]["message"]


def test_database_that_was_deleted_is_told_by_the_server(tmp_path: Path) -> None:
    with running_house(tmp_path) as house:
        house.publish("census")
        (tmp_path / "appliance.db").unlink()
        for answer in (
            httpx.get(f"{house.url}/api/v1/models"),
            httpx.patch(f"{house.url}/api/v1/models/census", json={"description": "?"}),
            httpx.get(f"{house.url}/api/v1/health"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_gone")
            assert "its file was deleted while it was in use" in answer.json()["error"]["message"]
        assert not (tmp_path / "appliance.db").exists()


def test_imports_and_exports_are_refused_with_what_helps(house: House, tmp_path: Path) -> None:
    run = runner(house, "on the database")
    (tmp_path / "file").write_text("?")
    for arguments, told in (
        (("import", "a/b", str(house.home / "export")), "Cannot use 'a/b' as a model name. It must match"),
        (("import", "adult", str(tmp_path / "nowhere")), "there is no such directory"),
        (("import", "adult", str(tmp_path / "file")), "it is a file. Give the directory of a SavedModel"),
        (("export", "census", "1", str(tmp_path / "file")), "it is there and not empty. Name another."),
        (
            ("export", "census", "1", str(tmp_path / "file" / "x")),
            "FileExistsError: File exists. Nothing was",
        ),
    ):
        assert told in run(*arguments, exits=1).stderr
    assert "Cannot find model 'adult'" in run("list", "adult", exits=3).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing half is left"


def test_rollback_to_lost_files_says_where_one_can_go_instead(house: House) -> None:
    run = runner(house, "on the database")
    for _ in range(3):
        house.publish("lost")
    for number in (1, 2, 3):
        house.registry.promote("lost", number, actor="ada")
    Path(house.registry.version("lost", 2).uri, "saved_model.pb").unlink()
    refused = run("rollback", "lost", exits=4).stderr
    assert "version 2 served before, but no longer can: there is no SavedModel at " in refused
    assert refused.endswith("/lost/2'. Go back to another that served before, by its number: 1.\n")
    run("rollback", "lost", "--to", "1")
    house.registry.delete_version("lost", 3, actor="ada")
    refused = run("rollback", "lost", "--to", "3", exits=4).stderr
    assert "version 3 served before, but no longer can: it is deleted. Go back to another" in refused


def test_version_may_be_given_by_label(run: Run, house: House) -> None:
    house.registry.promote("census", 3, label="canary", actor="ada")
    assert (
        "canary of census: version 3 -> version 2"
        in run(*("promote", "census", "production", "--label", "canary", "--wait", "0")).output
    )
    assert (
        run("gate", "census", "--check", "production").output == "Label production of census has no gate.\n"
    )
    assert "approved version 2 of census" in run("approve", "census", "production").output
    assert run("verify", "census", "production").output == "1 version is as published.\n"


def test_every_command_prints_json_for_programs(run: Run, house: House, tmp_path: Path) -> None:
    house.publish("census")
    newest = house.registry.search_versions("census").items[0].version
    approval = json.loads(run("approve", "census", str(newest), "--comment", "fine", "--json").output)
    assert (approval["version"], approval["label"], approval["comment"]) == (newest, "production", "fine")
    deleted = json.loads(run("delete", "census", str(newest), "--json").output)
    assert deleted == {"model": "census", "version": newest, "state": "deleted"}
    hook = json.loads(run("webhook", "add", "http://127.0.0.1/", "--json").output)["id"]
    assert json.loads(run("webhook", "remove", str(hook), "--json").output) == {
        "id": hook,
        "state": "removed",
    }
    listed = json.loads(run("list", "census", "--json").output)
    assert "signatures" not in listed[0], "a list does not read them, so it must not say that there are none"
    direct = runner(house, "on the database")
    told = json.loads(direct("export", "census", "2", str(tmp_path / "out"), "--json").output)
    assert told == {"model": "census", "version": 2, "directory": str(tmp_path / "out")}
    revisions = json.loads(direct("migrate", "--json").output)
    assert revisions["registry"]["from"] == revisions["registry"]["to"]
    assert set(revisions) == {"registry", "trainer"}
    for command in walk(group):
        assert command.name == "card" or any(option.name == "as_json" for option in command.params), command


def walk(command: click.Command) -> Iterator[click.Command]:
    """Yield the commands of a group and of the groups in it."""
    if not isinstance(command, click.Group):
        yield command
        return
    for inner in command.commands.values():
        yield from walk(inner)


def as_anybody(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody whom the permissions of files stop: root without its privilege over them."""
    command = [sys.executable, "-m", "appliance.cli", "registry", *arguments]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    environment = {**os.environ, "APPLIANCE_HOME": str(home)}
    environment.pop("APPLIANCE_URL", None)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_files_that_may_not_be_read_or_removed_are_told_from_missing_ones(tmp_path: Path) -> None:
    with running_house(tmp_path) as house:
        for _ in range(2):
            house.publish("census")
        house.registry.promote("census", 1, actor="ada")
    place = tmp_path / "models" / "census" / "2"
    place.chmod(0o300)
    unread = as_anybody(tmp_path, "verify", "census", "2")
    promoted = as_anybody(tmp_path, "promote", "census", "2")
    place.chmod(0o500)
    deleted = as_anybody(tmp_path, "delete", "census", "2")
    collected = as_anybody(tmp_path, "gc")
    place.chmod(0o700)
    for refused in (unread, promoted):
        assert refused.returncode == 5
        assert f"Cannot get at the files in '{place}': PermissionError: " in refused.stderr
    assert deleted.returncode == 5
    assert f"is deleted, but its files in '{place}' could not be removed: PermissionError" in deleted.stderr
    assert "gc tries again" in deleted.stderr
    assert collected.returncode == 1
    assert f"error: could not remove {place} (PermissionError: " in collected.stderr
    last = as_anybody(tmp_path, "gc")
    assert (last.returncode, str(place) in last.stdout) == (0, True)


def test_home_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    with running_house(tmp_path / "home") as house:
        house.publish("census")
    places = [tmp_path / "home", *(tmp_path / "home").glob("appliance.db*")]
    for place in places:
        place.chmod(0o500)
    told = [as_anybody(tmp_path / "home", *command) for command in (["list"], ["promote", "census", "1"])]
    told.append(as_anybody(tmp_path / "home" / "new", "list"))
    for place in places:
        place.chmod(0o700)
    for refused in told:
        assert refused.returncode == 5
        assert "Check its address, and that it runs and can be written." in refused.stderr
        assert str(tmp_path / "home") in refused.stderr


def test_command_over_http_names_a_server_that_is_not_there(tmp_path: Path) -> None:
    environment = {"APPLIANCE_HOME": str(tmp_path)}
    result = CliRunner().invoke(cli, ["registry", "gc", "--url", "http://127.0.0.1:1"], env=environment)
    assert result.exit_code == 5
    assert "Cannot reach the appliance at http://127.0.0.1:1" in result.stderr
