"""The commands that look after files: import, export, verify, retention, gc. On both ways to the registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from appliance.api import responses
from appliance.cli import cli
from tests.appliance.api_server import House, running_house

Run = Callable[..., Result]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with running_house(tmp_path) as running:
        for _ in range(5):
            running.publish("census")
        running.registry.promote("census", 2, actor="ada")
        yield running


def runner(house: House, way: str) -> Run:
    """Return what runs a command and expects the exit code given as `exits`."""
    remote = way == "over HTTP"
    environment = {"APPLIANCE_URL": house.url if remote else None, "APPLIANCE_HOME": str(house.home)}

    def invoke(*arguments: str, exits: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["registry", *arguments], env=environment)
        assert result.exit_code == exits, result.output
        return result

    return invoke


@pytest.fixture(params=["over HTTP", "on the database"])
def run(request: pytest.FixtureRequest, house: House) -> Run:
    return runner(house, request.param)


def test_verify_tells_which_files_are_damaged_and_how(run: Run, house: House) -> None:
    assert run("verify", "census").output == "5 versions are as published.\n"
    graph = house.home / "models" / "census" / "4" / "saved_model.pb"
    graph.write_bytes(b"a grapf")
    (graph.parent / "stranger").write_bytes(b"?")
    assert run("verify", "census", "3").output == "1 version is as published.\n"
    told = run("verify", "census", exits=9).output
    assert "4        saved_model.pb  changed" in told
    assert "stranger" in told
    assert "damaged versions of census: 4" in told
    (entry,) = json.loads(run("verify", "census", "4", "--json", exits=9).stdout)
    assert {damage["problem"] for damage in entry["damages"]} == {"changed", "extra"}
    run("verify", "census", "9", exits=3)


def test_retention_is_shown_set_and_followed_by_gc(run: Run, house: House) -> None:
    assert run("retention", "census").output == "census: keep all versions\n"
    assert run("gc").output == "There was nothing to remove.\n"
    shown = run("retention", "census", "--keep-last", "2").output
    assert shown == "census: keep the last 2 and all that ever were in production\n"
    told = run("gc", "--dry-run").output
    assert "model   version  bytes  would go" in told
    assert told.endswith("\n14 bytes would be freed; nothing was removed\n"), told
    foreseen = json.loads(run("gc", "--dry-run", "--json").output)
    assert [entry["version"] for entry in foreseen] == [1, 3]
    policy = "retention policy 1: keep the last 2 and all that were ever in production"
    assert {(entry["reason"], entry["size_bytes"]) for entry in foreseen} == {(policy, 7)}
    assert json.loads(run("gc", "--json").output) == foreseen
    assert run("gc", "--dry-run").output == "There is nothing to remove.\n"
    listed = json.loads(run("list", "census", "--json").output)
    assert [version["version"] for version in listed] == [5, 4, 2]
    run("retention", "census", "--keep-all")
    assert json.loads(run("retention", "census", "--json").output)["keep_last"] is None
    assert "go with --keep-last" in run("retention", "census", "--drop-production", exits=2).output


def test_answers_about_files_are_what_the_description_says(house: House) -> None:
    with httpx.Client(base_url=f"{house.url}/api/v1") as http:
        found = http.get("/models/census/verification?version=1").raise_for_status().json()
        assert responses.VerificationsBody.model_validate(found).versions[0].intact
        policy = http.put("/models/census/retention", json={"keep_last": 1}).raise_for_status().json()
        assert responses.RetentionBody.model_validate(policy).revision == 1
        assert http.put("/models/census/retention", json={"keep_last": 0}).status_code == 422
        assert responses.RemovedBody.model_validate(http.post("/gc").raise_for_status().json()).removed


def test_model_made_elsewhere_is_imported_and_exported_whole(house: House, tmp_path: Path) -> None:
    import tensorflow as tf

    v1, made = tf.compat.v1, tmp_path / "made"
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def({"x": info(x)}, {"y": info(x * 2)}, "predict")
        builder = v1.saved_model.Builder(str(made))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    run = runner(house, "on the database")
    imported = run("import", "doubler", str(made), "--metric", "auc=0.9", "--tag", "from=afar", "--json")
    version = json.loads(imported.output)
    assert (version["version"], version["metrics"], version["tags"]) == (1, {"auc": 0.9}, {"from": "afar"})
    assert version["signatures"]["serving_default"]["inputs"] == {"x": {"dtype": "float32", "shape": [None]}}
    out = tmp_path / "out"
    assert run("export", "doubler", "1", str(out)).output == f"version 1 of doubler is in {out}\n"
    assert (out / "saved_model.pb").read_bytes() == (made / "saved_model.pb").read_bytes()
    assert "not empty" in run("export", "doubler", "1", str(out), exits=1).output
    assert "contains no saved_model.pb" in run("import", "doubler", str(tmp_path), exits=1).output
    assert "which is no number" in run("import", "doubler", str(made), "--metric", "auc=high", exits=2).output
    remote = runner(house, "over HTTP")
    assert "works on the database itself" in remote("import", "doubler", str(made), exits=1).output
