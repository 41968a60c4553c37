"""The commands of the registry beyond promoting: finding, describing, looking back. Over HTTP and without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.cli import cli
from appliance.client import Client
from appliance.client.transport import default_actor
from tests.appliance.api_server import House, running_house

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_house(tmp_path_factory.mktemp("house")) as running:
        for number in range(1, 6):
            running.publish(
                "flights-eu",
                metrics={"auc": 0.5 + number / 10},
                tags={"team": "ads" if number % 2 else "maps"},
                job=f"job-{number}",
            )
        running.publish("hotels")
        running.registry.promote("flights-eu", 3, actor="ada")
        running.registry.promote("flights-eu", 4, actor="ada")
        running.registry.rollback("flights-eu", actor="bob")
        yield running


@pytest.fixture(params=["over HTTP", "on the database"])
def run(request: pytest.FixtureRequest, house: House) -> Run:
    """Runs a command, on both ways to the registry, and expects the exit code given as `exits`."""
    remote = request.param == "over HTTP"
    environment = {"APPLIANCE_URL": house.url if remote else None, "APPLIANCE_HOME": str(house.home)}

    def invoke(*arguments: str, exits: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["registry", *arguments], env=environment)
        assert result.exit_code == exits, result.output
        return result

    return invoke


def listed(result: Result) -> list[Any]:
    return [entry["version"] for entry in json.loads(result.output)]


def test_list_finds_models_by_pattern_and_versions_by_everything(run: Run) -> None:
    assert run("list", "--name", "flights-*").output.splitlines()[1].startswith("flights-eu  production=3")
    assert "hotels" in run("list").output
    assert listed(run("list", "flights-eu", "--where", "auc > 0.75", "--tag", "team=ads", "--json")) == [5, 3]
    assert listed(run("list", "flights-eu", "--order", "metrics.auc", "--limit", "2", "--json")) == [1, 2]
    assert listed(run("list", "flights-eu", "--job", "job-2", "--json")) == [2]
    assert listed(run("list", "flights-eu", "--label", "production", "--json")) == [3]
    assert listed(run("list", "flights-eu", "--until", "2020-01-01", "--json")) == []
    assert len(listed(run("list", "flights-eu", "--since", "2020-01-01T00:00:00Z", "--json"))) == 5
    assert "no such versions" in run("list", "flights-eu", "--state", "failed").output


def test_list_refuses_what_it_cannot_read_with_what_it_can(run: Run) -> None:
    assert "Write it like 'auc > 0.7'" in run("list", "hotels", "--where", "auc above 1", exits=1).output
    assert "Order by version, created" in run("list", "hotels", "--order", "auc", exits=1).output
    assert "leave out MODEL" in run("list", "hotels", "--name", "h*", exits=2).output
    assert "Cannot find model 'nobody'" in run("list", "nobody", exits=3).output


def test_every_change_is_remembered_with_who_made_it(run: Run) -> None:
    run("tag", "hotels", "stage=test")
    run("tag", "hotels", "stage=prod", "--version", "1")
    run("tag", "hotels", "--remove", "stage")
    run("tag", "hotels", "--remove", "stage", "--version", "1")
    events = json.loads(run("events", "hotels", "--limit", "4", "--json").output)
    assert {event["kind"] for event in events} == {"model.tagged", "version.tagged"}
    assert {event["actor"] for event in events} == {default_actor()}


def test_history_goes_back_page_by_page(run: Run) -> None:
    newest = json.loads(run("history", "flights-eu", "--limit", "2", "--json").output)
    assert [(move["action"], move["to_version"]) for move in newest] == [("rollback", 3), ("promote", 4)]
    before = str(newest[-1]["id"])
    (oldest,) = json.loads(run("history", "flights-eu", "--before", before, "--json").output)
    assert (oldest["action"], oldest["to_version"]) == ("promote", 3)


def test_client_follows_pages_to_the_end(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.client.registry._PAGE", 2)
    with Client(house.url) as client:
        assert [version.version for version in client.versions("flights-eu")] == [5, 4, 3, 2, 1]
        assert [version.version for version in client.versions("flights-eu", limit=3)] == [5, 4, 3]
        assert [move.to_version for move in client.history("flights-eu")] == [3, 4, 3]
        assert [move.to_version for move in client.history("flights-eu", limit=1)] == [3]
        assert client.versions("flights-eu", limit=0) == []
