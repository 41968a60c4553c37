"""What is told of versions: lineage, model card, comparison; and the commands for it, on both ways."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from appliance.api import responses
from appliance.api.lineage import POINTS, curves_of
from appliance.card import curve_rows, render_card, sparkline, step_rows
from appliance.cli import cli
from appliance.cli.output import cell
from appliance.client import Client
from appliance.client.results import Version
from appliance.comparison import compare
from appliance.trainer.job import JobSpec
from appliance.trainer.user_code import UserCodeError, UserExperiment
from registry.errors import GateRefused
from tests.appliance.api_server import House, running_house

Run = Callable[..., Result]
SIGNATURES = {
    "serving_default": {
        "method_name": "tensorflow/serving/predict",
        "inputs": {"age": {"dtype": "float32", "shape": [None, 1]}},
        "outputs": {"logits": {"dtype": "float32", "shape": [None, 2]}},
    }
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_house(tmp_path_factory.mktemp("house")) as running:
        fill(running)
        yield running


def fill(house: House) -> None:
    """Make two versions, the first of a job with curves, refused once, approved, promoted, replaced."""
    spec = JobSpec(file="experiment.py", model="census", submitted_by="ada")
    job = house.jobs.submit(spec)
    house.jobs.claim("worker-1", 60)
    for step in range(0, 1001, 100):
        fields = {"step": step, "max_steps": 1000, "loss": 1.0 - step / 2000, "steps_per_second": 200.0}
        house.jobs.append_event(job.id, "worker-1", "train", fields)
    house.jobs.append_event(
        job.id, "worker-1", "evaluation", {"step": 1000, "metrics": {"auc": 0.75, "loss": "nan"}}
    )
    house.publish(
        "census",
        metrics={"auc": 0.75, "loss": math.nan},
        params={"units": [64, 32], "optimizer": {"rate": 0.1}},
        step=1000,
        job=job.id,
        source_revision="abc123",
        data_fingerprint="sha256:feed",
        libraries={"tensorflow": "2.21.0"},
        signatures=SIGNATURES,
        tags={"team": "a|b"},
        description="who earns <b>more</b>",
    )
    house.publish("census", metrics={"auc": 0.8}, params={"units": [64, 32], "optimizer": {"rate": 0.2}})
    house.registry.set_gate("census", "production", ["auc >= 0.9"], actor="ada")
    with pytest.raises(GateRefused):
        house.registry.promote("census", 1, actor="bob")
    house.registry.approve("census", 1, "production", "eve", "looked at errors")
    house.registry.promote("census", 1, actor="bob", force=True, reason="demo day")
    house.registry.promote("census", 2, actor="bob", force=True, reason="after it")


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


def test_lineage_tells_job_curves_reports_and_moves(house: House) -> None:
    with Client(house.url) as client:
        lineage = client.lineage("census", 1)
    responses.LineageBody.model_validate(lineage)
    assert lineage["job"]["file"] == "experiment.py"
    assert lineage["curves"]["train/loss"][0] == [0, 1.0]
    assert lineage["curves"]["train/loss"][-1] == [1000, 0.5]
    assert lineage["curves"]["evaluation/auc"] == [[1000, 0.75]]
    assert lineage["curves"]["evaluation/loss"] == [[1000, "nan"]]
    report = lineage["gate_reports"]["production"]
    assert (report["passed"], report["checks"][0]["measured"]) == (False, 0.75)
    moves = [(move["from_version"], move["to_version"], move["forced"]) for move in lineage["moves"]]
    assert moves == [(1, 2, True), (None, 1, True)]
    assert [entry["actor"] for entry in lineage["approvals"]] == ["eve"]


def test_curves_keep_the_later_word_and_at_most_a_hundred_points() -> None:
    events = [("train", {"step": step, "loss": float(step)}) for step in range(0, 5000, 5)]
    events += [("train", {"step": 0, "loss": 9.0}), ("checkpoint", {"step": 7}), ("train", {"loss": 1.0})]
    curves = curves_of(events)
    assert list(curves) == ["train/loss"]
    points = curves["train/loss"]
    assert len(points) == POINTS
    assert (points[0], points[-1]) == ([0, 9.0], [4995, 4995.0])


def test_curves_tell_nan_and_infinities_by_name_and_leave_out_what_is_no_number() -> None:
    losses = [1.0, "inf", "-inf", "nan", True, "low", None, ["nan"]]
    curves = curves_of(("train", {"step": step, "loss": loss}) for step, loss in enumerate(losses))
    assert curves == {"train/loss": [[0, 1.0], [1, "inf"], [2, "-inf"], [3, "nan"]]}
    (row,) = curve_rows(curves)
    assert row[:1] + row[3:] == ("train/loss", -math.inf, math.inf, "▁   ")
    assert [cell(value) for _, value in step_rows(curves, "train")[1]] == ["1", "inf", "-inf", "nan"]


def test_show_prints_facts_curves_gate_and_moves(run: Run) -> None:
    shown = run("show", "census", "1").output
    assert "data fingerprint  sha256:feed" in shown
    assert "file=experiment.py" in shown
    for line in ("train/loss", "gate of production, REFUSED", "auc is 0.75, wanted at least 0.9", "demo day"):
        assert line in shown
    assert "evaluation by step\nstep  auc   loss\n1000  0.75  nan\n" in shown
    assert "training by step\nstep  loss  steps_per_second\n0     1     200\n100   0.95  200\n" in shown
    assert re.search(
        r"approvals\nat +label +by +comment\n\S+ \S+  production  eve  looked at errors\n", shown
    )
    told = json.loads(run("show", "census", "production", "--json").output)
    assert (told["version"], told["labels"], told["lineage"]["job"]) == (2, ["production"], None)
    told = json.loads(run("show", "census", "1", "--json").output)
    assert told["lineage"]["curves"]["evaluation/loss"] == [[1000, "nan"]]


def test_card_is_markdown_that_nothing_in_it_can_break(run: Run, house: House, tmp_path: Path) -> None:
    file = tmp_path / "card.md"
    run("card", "census", "1", "--output", str(file))
    card = file.read_text()
    assert card == run("card", "census", "1").output
    assert card.startswith("# census, version 1\n\nwho earns \\<b\\>more\\</b\\>\n")
    for row in (
        "| tags | team=a\\|b |",
        "| data fingerprint | sha256:feed |",
        "| auc | 0.75 |",
        "| serving\\_default | inputs | age | float32 | [null, 1] |".replace("[", "\\[").replace("]", "\\]"),
        "## Gate of production: **refused**",
        "| production | eve |",
        "| evaluation/loss | nan | nan | nan | nan |  |",
        "## Evaluation by step\n\n| step | auc | loss |\n| --- | --- | --- |\n| 1000 | 0.75 | nan |",
        "| tensorflow | 2.21.0 |",
    ):
        assert row in card, row
    (curve,) = [line for line in card.splitlines() if line.startswith("| train/loss")]
    assert curve == "| train/loss | 1 | 0.5 | 0.5 | 1 | `█▇▇▆▅▅▄▃▂▂▁` |"
    assert "promote: none → 1 | bob | forced; demo day |" in card
    answer = httpx.get(f"{house.url}/api/v1/models/census/versions/1/card")
    assert (answer.text, answer.headers["content-type"]) == (card, "text/markdown; charset=utf-8")


def test_card_of_a_version_without_anything_has_no_empty_tables(house: House) -> None:
    house.publish("bare")
    with Client(house.url) as client:
        card = render_card(client.lineage("bare", 1))
    assert "##" not in card
    assert "job" not in card


def test_fingerprint_that_is_no_text_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "untold.py").write_text("def experiment(run_config, params): ...\n")
    (tmp_path / "odd.py").write_text("def data_fingerprint(params): return 7\n")
    assert UserExperiment(str(tmp_path), "untold.py", "experiment").data_fingerprint({}) == ""
    with pytest.raises(UserCodeError, match=r"data_fingerprint\(\) of odd.py must return text.*Received: 7"):
        UserExperiment(str(tmp_path), "odd.py", "experiment").data_fingerprint({})


def test_table_by_step_has_ten_steps_at_most_and_gaps_where_nothing_was_told() -> None:
    curves = {
        "train/loss": [[step, step / 100] for step in range(100)],
        "train/rate": [[0, 1.0], [99, 2.0]],
        "evaluation/auc": [[50, 0.7]],
    }
    columns, rows = step_rows(curves, "train")
    assert columns == ["step", "loss", "rate"]
    assert [row[0] for row in rows] == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert (rows[0], rows[1], rows[-1]) == ([0, 0.0, 1.0], [11, 0.11, None], [99, 0.99, 2.0])
    assert step_rows(curves, "evaluation") == (["step", "auc"], [[50, 0.7]])
    assert step_rows({}, "train") == (["step"], [])


def test_sparkline_shows_extremes_and_gaps() -> None:
    assert sparkline([0.0, 1.0, math.nan, 0.5]) == "▁█ ▅"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([math.nan]) == sparkline([]) == ""
    assert len(sparkline([float(value) for value in range(1000)])) == 32


def test_compare_shows_what_differs_and_by_how_much(run: Run) -> None:
    lines = [line.split() for line in run("compare", "census", "1", "production").output.splitlines()]
    assert lines[0] == ["name", "version", "1", "version", "2", "change"]
    assert ["metrics", "auc", "0.75", "0.8", "+0.05"] in lines
    assert ["params", "optimizer.rate", "0.1", "0.2", "+0.1"] in lines
    assert not any("units" in line for line in lines)
    assert "units" in run("compare", "census", "1", "2", "--all").output
    told = json.loads(run("compare", "census", "1", "2", "--json").output)
    (auc,) = [row for row in told["rows"] if row["name"] == "auc"]
    assert (auc["values"], auc["differs"], round(auc["change"], 9)) == ([0.75, 0.8], True, 0.05)
    assert "Give two versions" in run("compare", "census", "1", exits=2).output


def test_comparison_takes_nan_as_like_nan_and_what_is_missing_as_different() -> None:
    one = Version("m", 1, "ready", metrics={"loss": math.nan, "auc": 0.5}, signatures=SIGNATURES)
    two = Version("m", 2, "ready", metrics={"loss": math.nan}, signatures=SIGNATURES, tags={"hot": "1"})
    rows = {row.name: row for row in compare([one, two])}
    assert not rows["loss"].differs
    assert rows["auc"].differs
    assert rows["auc"].change is None
    assert rows["hot"].values == (None, "1")
    assert not rows["serving_default.inputs.age"].differs


def test_tag_sets_removes_and_describes_models_and_versions(run: Run) -> None:
    run("tag", "census", "tier=1", "url=a=b", "--version", "2", "--description", "newer")
    assert json.loads(run("tag", "census", "--version", "2", "--json").output)["tags"]["url"] == "a=b"
    shown = run("tag", "census", "tier=2", "--remove", "url", "--version", "2").output
    assert shown.split() == ["tag", "value", "tier", "2"]
    assert run("tag", "census", "owner=ada").output.split() == ["tag", "value", "owner", "ada"]
    assert "KEY=VALUE" in run("tag", "census", "owner", exits=2).output
    run("tag", "census", "--version", "9", exits=3)


def test_approve_and_events_tell_who_did_what(run: Run) -> None:
    assert run("approve", "census", "2", "--comment", "fine").output.startswith("approved version 2")
    (event,) = json.loads(run("events", "census", "--kind", "gate.refused", "--json").output)
    assert (event["version"], event["actor"]) == (1, "bob")
    assert "version.approved" in run("events", "census", "--version", "2").output
    moves = json.loads(run("history", "census", "--version", "1", "--json").output)
    assert [(move["from_version"], move["to_version"]) for move in moves] == [(1, 2), (None, 1)]


def test_label_is_taken_away_and_rolled_back(run: Run) -> None:
    run("promote", "census", "2", "--label", "canary", "--wait", "0")
    assert "canary" not in run("label", "census", "--remove", "canary", "--reason", "over").output
    run("label", "census", "--remove", "canary", exits=3)
    run("rollback", "census", "--label", "canary", "--wait", "0")
    assert json.loads(run("label", "census", "--json").output)["canary"] == 2


def test_webhooks_are_added_listed_and_removed_by_the_command(run: Run, monkeypatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "long enough a secret")
    add = ["webhook", "add", "https://example.com/x", "--model", "census", "--kind", "label.*"]
    added = json.loads(run(*add, "--secret-env", "HOOK_SECRET", "--json").output)
    assert added["secret"] == "long enough a secret"
    listed = run("webhook", "list", "--model", "census").output
    assert "https://example.com/x  census  label.*" in listed
    assert "long enough" not in listed
    run("promote", "census", "1", "--label", f"label-{time.time_ns()}", "--wait", "0")
    hook = str(added["id"])
    (delivery,) = json.loads(run("webhook", "deliveries", hook, "--json").output)
    assert (delivery["kind"], delivery["state"], delivery["attempts"]) == ("label.moved", "pending", 0)
    assert "will be sent" in run("webhook", "redeliver", str(delivery["id"])).output
    run("webhook", "remove", hook)
    run("webhook", "remove", hook, exits=3)
    assert "the kinds of events are" in run("webhook", "add", "https://a.b", "--kind", "x", exits=1).output
