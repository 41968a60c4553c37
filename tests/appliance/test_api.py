"""The control plane, through a real server and the real client."""

from __future__ import annotations

import dataclasses
import logging
import math
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from appliance.api import limits
from appliance.api.errors import STATUS, code_of
from appliance.client import (
    Client,
    ClientError,
    Conflict,
    GateRefused,
    InvalidBundle,
    InvalidRequest,
    LoadFailed,
    NotFound,
    ServerFailed,
    TooLarge,
    Unauthorized,
)
from tests.appliance.api_server import House, running_house


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    with Client(house.url, actor="Ada Lövelace") as made:
        yield made


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """The file of an experiment, in a folder of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helpers.py").write_text("ROWS = 3\n")
    file = folder / "experiment.py"
    file.write_text("import helpers\n\ndef experiment(run_config, params): ...\n")
    return file


def test_submitted_job_is_queued_with_its_bundle(house: House, client: Client, experiment: Path) -> None:
    job = client.submit(
        experiment,
        model="flights",
        promote="production",
        params={"steps": 10, "rates": [0.1, 0.2]},
        run_config={"save_checkpoints_steps": 5},
    )
    assert (job.state, job.name, job.file, job.function) == (
        "queued",
        "flights",
        "experiment.py",
        "experiment",
    )
    assert (job.model, job.promote, job.submitted_by) == ("flights", "production", "Ada Lövelace")
    assert job.params == {"steps": 10, "rates": [0.1, 0.2]}
    assert job.run_config == {"save_checkpoints_steps": 5}
    assert client.job(job) == job
    assert client.jobs(state="queued")[0] == job
    assert client.jobs(state="running") == []
    with tarfile.open(house.home / "jobs" / job.id / "bundle.tar.gz") as bundle:
        assert bundle.getnames() == ["experiment.py", "helpers.py"]


def test_job_is_followed_to_its_end(house: House, client: Client, experiment: Path, capsys: Any) -> None:
    """A client that watches sees every event and line, in order, also those that come later."""
    job = client.submit(experiment)
    claimed = house.jobs.claim("worker-1", 60)
    while claimed is not None and claimed.id != job.id:
        house.jobs.finish(claimed.id, "worker-1", {})
        claimed = house.jobs.claim("worker-1", 60)
    house.jobs.append_log(job.id, "worker-1", ["first", "second"])
    train = {"step": 100, "max_steps": 200, "loss": 0.25, "steps_per_second": 1234.5}
    house.jobs.append_event(job.id, "worker-1", "train", train)
    seen: list[Any] = []

    def end_it(event: Any) -> None:
        seen.append(event)
        if event.kind == "train":
            evaluation = {"step": 200, "metrics": {"auc": 0.75, "global_step": 200}}
            house.jobs.append_event(job.id, "worker-1", "evaluation", evaluation)
            house.jobs.append_log(job.id, "worker-1", ["third"])
            house.jobs.finish(job.id, "worker-1", {"step": 200, "version": 3, "promoted_to": "production"})

    ended = client.watch(job, on_event=end_it)
    assert (ended.state, ended.version, ended.step, ended.done) == ("succeeded", 3, 200, True)
    assert [(event.number, event.kind) for event in seen] == [(1, "train"), (2, "evaluation")]
    assert capsys.readouterr().out == (
        "train  step=100  max_steps=200  loss=0.25  steps_per_second=1234.5\nevaluation  step=200  auc=0.75\n"
    )
    assert [line.line for line in client.logs(job, follow=True)] == ["first", "second", "third"]
    assert [line.number for line in client.logs(job, after=2)] == [3]


def test_cancelled_job_is_done(client: Client, experiment: Path) -> None:
    job = client.cancel(client.submit(experiment))
    assert (job.state, job.done) == ("cancelled", True)
    assert list(client.events(job, follow=True)) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{", "Cannot read the spec: body: Invalid JSON"),
        (
            '{"file": "experiment.py", "modle": "m"}',
            "Cannot read the spec: modle: Extra inputs are not permitted.",
        ),
        ('{"file": "experiment.py", "params": 3}', "Cannot read the spec: params: Input should be"),
        ('{"file": "/etc/passwd"}', "file must be a Python file inside the bundle"),
        ('{"file": "experiment.py", "promote": "production"}', "model must be given"),
        ('{"file": "other.py"}', "The bundle has no file 'other.py'; it holds: experiment.py, helpers.py."),
    ],
)
def test_wrong_spec_is_refused_with_its_mistake(
    house: House, experiment: Path, spec: str, message: str
) -> None:
    from appliance.bundle import make_bundle

    before = sorted(path.name for path in (house.home / "jobs").glob("*"))
    files = {"bundle": make_bundle(experiment).data}
    answer = httpx.post(f"{house.url}/api/v1/jobs", data={"spec": spec}, files=files)
    assert answer.status_code == 422
    assert message in answer.json()["error"]["message"]
    assert sorted(path.name for path in (house.home / "jobs").glob("*")) == before


@pytest.mark.parametrize(
    "form", [{}, {"data": {"spec": "{}"}}, {"files": {"bundle": b"x"}}, {"content": b"{}"}]
)
def test_submission_without_its_parts_is_refused(house: House, form: dict[str, Any]) -> None:
    answer = httpx.post(f"{house.url}/api/v1/jobs", **form)
    assert answer.status_code == 422
    assert "Send a form with the field 'spec'" in answer.json()["error"]["message"]


def test_what_is_no_bundle_is_refused(house: House) -> None:
    form: dict[str, Any] = {"data": {"spec": '{"file": "a.py"}'}, "files": {"bundle": b"import os"}}
    answer = httpx.post(f"{house.url}/api/v1/jobs", **form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_bundle")
    broken = httpx.post(
        f"{house.url}/api/v1/jobs",
        content=b"--x",
        headers={"content-type": "multipart/form-data; boundary=y"},
    )
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_request")


def test_bundle_that_the_server_has_no_room_for_is_told_with_the_reason(
    tmp_path: Path, experiment: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with running_house(tmp_path, jobs_root=tmp_path / "file" / "jobs") as house:
        with Client(house.url) as client, pytest.raises(ServerFailed) as raised:
            client.submit(experiment)
        assert (raised.value.status, raised.value.code) == (507, "bundle_not_kept")
        assert "cannot keep the bundle in its folder" in str(raised.value)
        assert "Not a directory. Make room" in str(raised.value)
        assert house.jobs.list() == []


def test_file_that_is_not_there_is_named(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidBundle, match=r"Cannot bundle '.*absent.py': there is no such file"):
        client.submit(tmp_path / "absent.py")


def test_files_left_out_of_the_bundle_are_told(client: Client, experiment: Path, caplog: Any) -> None:
    outside = experiment.parent.parent / "data.csv"
    outside.write_text("1\n")
    (experiment.parent / "data.csv").symlink_to(outside)
    with caplog.at_level(logging.WARNING):
        client.submit(experiment)
    assert "Left out of the bundle: data.csv (a link that leaves the folder)." in caplog.text


def test_body_over_the_limit_is_cut_off_while_it_streams(house: House, client: Client) -> None:
    """Neither a declared nor an undeclared length gets more than the limit into the server."""
    taken = 0

    def chunks() -> Iterator[bytes]:
        nonlocal taken
        while taken < 64 * limits.MAX_BODY_BYTES:
            taken += 1 << 16
            yield b" " * (1 << 16)

    answer = httpx.put(f"{house.url}/api/v1/models/flights/gates/production", content=chunks(), timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "at most 1 MiB" in answer.json()["error"]["message"]
    assert taken < 64 * limits.MAX_BODY_BYTES
    with pytest.raises(TooLarge, match="at most 1 MiB"):
        client.set_gate("flights", ["x" * (1 << 20)])


def test_versions_are_listed_newest_first(house: House, client: Client) -> None:
    house.publish("listed", metrics={"auc": 0.7}, params={"steps": 5}, step=5, job="job-1")
    house.publish("listed", metrics={"auc": float("nan")}, tags={"team": "a"})
    versions = client.versions("listed")
    assert [version.version for version in versions] == [2, 1]
    assert dataclasses.replace(versions[1], files=1) == client.version("listed", 1)
    first = versions[1]
    assert (first.state, first.metrics, first.params, first.step) == ("ready", {"auc": 0.7}, {"steps": 5}, 5)
    assert first.uri == str(house.home / "models" / "listed" / "1")
    assert first.ready_at is not None
    assert math.isnan(versions[0].metrics["auc"])
    assert [model.name for model in client.models("list*")] == ["listed"]
    assert client.model("listed").labels == {}


def test_promotion_and_rollback_move_the_label_and_are_recorded(house: House, client: Client) -> None:
    for _ in range(2):
        house.publish("moved")
    client.promote("moved", 1, reason="first", wait=0)
    move = client.promote("moved", 2, expect=1, wait=0)
    assert (move.from_version, move.to_version, move.actor, move.serving) == (1, 2, "Ada Lövelace", None)
    assert client.labels("moved") == {"production": 2}
    assert client.version("moved", "production").version == 2
    back = client.rollback("moved", reason="worse on mondays", wait=0)
    assert (back.action, back.from_version, back.to_version) == ("rollback", 2, 1)
    history = client.history("moved", label="production")
    assert [(entry.action, entry.to_version, entry.reason) for entry in history] == [
        ("rollback", 1, "worse on mondays"),
        ("promote", 2, ""),
        ("promote", 1, "first"),
    ]
    assert client.history("moved", label="canary") == []


def test_history_says_where_a_nameless_caller_is_also_behind_a_proxy(house: House, client: Client) -> None:
    url = f"{house.url}/api/v1/models/nameless/labels/production"
    for headers in ({}, {"X-Forwarded-For": "203.0.113.7"}):
        version = house.publish("nameless")
        answer = httpx.put(url, json={"version": version, "wait_seconds": 0}, headers=headers)
        assert answer.status_code == 200, answer.text
    actors = [entry.actor for entry in client.history("nameless", label="production")]
    assert actors == ["somebody at 203.0.113.7", "somebody at 127.0.0.1"]


def test_promotion_waits_until_the_gateway_routes_to_the_version(house: House, client: Client) -> None:
    house.publish("waited")
    house.report("waited")
    done: list[Any] = []
    waiting = threading.Thread(target=lambda: done.append(client.promote("waited", 1, wait=60)))
    waiting.start()
    while client.labels("waited") != {"production": 1}:
        assert waiting.is_alive()
    assert not done
    house.report("waited", production=1)
    waiting.join(timeout=60)
    assert done[0].serving is True


def test_promotion_that_is_not_served_in_time_says_so(house: House, client: Client) -> None:
    house.publish("slow")
    house.report("slow")
    assert client.promote("slow", 1, wait=0.05).serving is False


def test_promotion_of_a_version_that_will_not_load_fails(house: House, client: Client) -> None:
    """The client hears the loader's reason, and the label is where it was."""
    house.publish("broken")
    house.report("broken")
    failed: list[ClientError] = []

    def promote() -> None:
        try:
            client.promote("broken", 1, wait=60)
        except ClientError as error:
            failed.append(error)

    waiting = threading.Thread(target=promote)
    waiting.start()
    while not house.registry.history("broken"):
        assert waiting.is_alive()
    house.registry.undo_promotion(house.registry.history("broken")[0], "no such op: Frobnicate")
    waiting.join(timeout=60)
    assert isinstance(failed[0], LoadFailed)
    assert str(failed[0]) == "Version 1 of model 'broken' was promoted and put back: no such op: Frobnicate"
    assert client.labels("broken") == {}


def test_gate_refuses_a_worse_version_and_force_passes_over_it(house: House, client: Client) -> None:
    house.publish("gated", metrics={"auc": 0.70})
    house.publish("gated", metrics={"auc": 0.65})
    gate = client.set_gate("gated", ["auc >= 0.69"])
    assert (gate.rules, client.gate("gated").rules) == (["auc >= 0.69"], ["auc >= 0.69"])
    client.promote("gated", 1, wait=0)
    assert not client.check_gate("gated", 2).passed
    with pytest.raises(GateRefused, match=r"0\.65") as refused:
        client.promote("gated", 2, wait=0)
    assert (refused.value.status, refused.value.code) == (409, "gate_refused")
    assert client.labels("gated") == {"production": 1}
    forced = client.promote("gated", 2, force=True, reason="the metric is wrong", wait=0)
    assert forced.forced
    assert forced.gate_report is not None
    assert forced.gate_report["passed"] is False


def test_deleted_version_is_gone(house: House, client: Client) -> None:
    house.publish("deleted")
    house.publish("deleted")
    client.promote("deleted", 2, wait=0)
    client.delete_version("deleted", 1)
    assert client.version("deleted", 1).state == "deleted"
    with pytest.raises(Conflict, match="Cannot delete version 2 of model 'deleted'"):
        client.delete_version("deleted", 2)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda c: c.job("none-1"), NotFound, "Cannot find job 'none-1'"),
        (lambda c: c.cancel("none-1"), NotFound, "Cannot find job 'none-1'"),
        (lambda c: list(c.logs("none-1")), NotFound, "Cannot find job 'none-1'"),
        (lambda c: c.jobs(state="lost"), InvalidRequest, "query.state: Input should be 'queued'"),
        (lambda c: c.model("nope"), NotFound, "Cannot find model 'nope'"),
        (
            lambda c: c._transport.get("/api/v1/nix"),
            NotFound,
            "There is no GET /api/v1/nix; /api/v1/docs lists",
        ),
        (lambda c: c.versions("a/b"), InvalidRequest, "Cannot ask for 'a/b': it is the name of nothing"),
        (lambda c: c.version("errs", 9), NotFound, "Cannot find version 9 of model 'errs'"),
        (lambda c: c.version("errs", "canary"), NotFound, "Cannot find label 'canary'"),
        (lambda c: c.version("errs", 10**30), NotFound, "Cannot find version 1000000"),
        (lambda c: c.version("errs", ""), InvalidRequest, "Cannot ask for '': it is the name of nothing"),
        (lambda c: c.job(".."), InvalidRequest, "Cannot ask for '..'"),
        (lambda c: c.job("."), InvalidRequest, "Cannot ask for '.'"),
        (lambda c: c.job("a\0b"), NotFound, "Cannot find job 'a\\x00b'"),
        (lambda c: list(c.logs("errs", after=2**31)), InvalidRequest, "query.after: Input should be less"),
        (lambda c: c.check_gate("errs", 10**30), NotFound, "Cannot find version 1000000"),
        (lambda c: c.delete_version("errs", 10**30), NotFound, "Cannot find version 1000000"),
        (lambda c: c.promote("errs", 10**30), NotFound, "Cannot find version 1000000"),
        (lambda c: c.rollback("errs", to=10**30), NotFound, "Cannot find version 1000000"),
        (lambda c: c.promote("errs", 9), NotFound, "Cannot find version 9"),
        (
            lambda c: c.promote("errs", 0),
            InvalidRequest,
            "body.version: Input should be greater than or equal",
        ),
        (lambda c: c.promote("errs", 1, label="9"), InvalidRequest, "Cannot use '9' as a label name"),
        (lambda c: c.promote("errs", 1, expect=3), Conflict, "expected it on version 3, it is on no version"),
        (lambda c: c.rollback("errs"), ClientError, "Cannot"),
        (
            lambda c: c.set_gate("errs", ["auc is nice"]),
            InvalidRequest,
            "Cannot read the gate rule 'auc is nice'",
        ),
        (lambda c: c.set_gate("errs", "auc >= 1"), InvalidRequest, "Give the rules as a list of strings"),
        (
            lambda c: c.predict("errs", instances=[{1, 2}]),
            InvalidRequest,
            "as JSON: Object of type set is not JSON serializable. Give numbers",
        ),
        (lambda c: c.submit(__file__, params=[1]), InvalidRequest, "params must be a mapping. Received: [1]"),
        (lambda c: Client(c.url, token="a\nb"), InvalidRequest, "Cannot send the token: it holds a line end"),
        (lambda c: c.predict("errs"), InvalidRequest, "Give either `instances`"),
        (lambda c: c.predict("errs", instances=[1], version=1, label="a"), InvalidRequest, "not both"),
    ],
)
def test_mistake_of_the_caller_is_named_and_is_no_fault_of_the_server(
    house: House, client: Client, call: Any, kind: type[ClientError], message: str
) -> None:
    if not any(model.name == "errs" for model in client.models()):
        house.publish("errs")
    with pytest.raises(kind) as raised:
        call(client)
    assert message in str(raised.value)
    assert raised.value.status < 500


def test_every_answer_to_a_wrong_request_has_the_form_of_an_error(house: House) -> None:
    for method, path in [("GET", "/api/v1/nothing"), ("PATCH", "/api/v1/jobs"), ("GET", "/api/")]:
        answer = httpx.request(method, house.url + path)
        assert answer.status_code in (404, 405)
        assert set(answer.json()["error"]) == {"code", "message"}
    broken = httpx.put(f"{house.url}/api/v1/models/m/labels/production", content=b"{")
    assert broken.status_code == 422
    assert broken.json()["error"]["code"] == "invalid_request"
    assert "Send the body with 'Content-Type: application/json'" in broken.json()["error"]["message"]


def test_predictions_do_not_pass_through_the_control_plane(house: House, client: Client) -> None:
    answer = httpx.post(f"{house.url}/v1/models/m/versions/3:predict", json={"instances": [1]})
    assert answer.headers["x-path"] == "/v1/models/m/versions/3:predict"
    rows = client.predict("m", instances=[1.5, 2.0])
    np.testing.assert_array_equal(rows, np.array([3.0, 4.0]))
    named = client.predict("m", instances=[{"a": 1, "b": [1.0]}, {"a": 2, "b": [2.0]}])
    np.testing.assert_array_equal(named["a"], np.array([2, 4]))
    np.testing.assert_array_equal(named["b"], np.array([[2.0], [4.0]]))
    columns = client.predict("m", inputs={"x": np.array([[1, 2]]), "n": np.float32(3)}, label="canary")
    np.testing.assert_array_equal(columns["x"], np.array([[2, 4]]))
    assert columns["n"] == 6.0
    texts = client.predict("m", instances=[b"\xff\x00", "ab"])
    assert texts.tolist() == [b"\xff\x00", "abab"]


def test_token_is_asked_for_and_health_is_open(tmp_path: Path, experiment: Path) -> None:
    with running_house(tmp_path, token="secret") as house:
        with Client(house.url, token="secret") as allowed:
            assert allowed.submit(experiment).state == "queued"
            assert allowed.models() == []
            assert allowed.serving()["targets"] == []
        with Client(house.url, token="") as stranger:
            assert stranger.health() == {"status": "ok", "workers": 0}
            with pytest.raises(Unauthorized, match=r"A token is needed.*APPLIANCE_TOKEN"):
                stranger.models()
            with pytest.raises(Unauthorized, match="A token is needed"):
                stranger.submit(experiment)
        with (
            Client(house.url, token="sécret") as wrong,
            pytest.raises(Unauthorized, match="The token is wrong"),
        ):
            wrong.serving()


def test_web_page_cannot_command_an_appliance_without_a_token(house: House) -> None:
    """Neither by a form sent from another origin, nor under a name that is made to mean this machine."""
    port = house.url.rpartition(":")[2]
    url = f"{house.url}/api/v1/models"
    foreign = httpx.get(url, headers={"Origin": "https://example.com"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "forbidden")
    assert "no requests from the web page of 'https://example.com'" in foreign.json()["error"]["message"]
    rebound = httpx.get(url, headers={"Host": f"example.com:{port}"})
    assert rebound.status_code == 403
    assert f"not as 'example.com:{port}'" in rebound.json()["error"]["message"]
    for broken in [{"Host": "["}, {"Host": "[::1"}, {"Origin": "http://["}]:
        assert httpx.get(url, headers=broken).status_code == 403
    assert httpx.get(url, headers={"Origin": house.url}).status_code == 200
    assert httpx.get(url, headers={"Host": f"localhost:{port}"}).status_code == 200


def test_client_takes_address_and_token_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, house: House
) -> None:
    monkeypatch.setenv("APPLIANCE_URL", house.url + "/")
    with Client() as client:
        assert client.url == house.url
        assert client.health()["status"] == "ok"


def test_table_of_statuses_names_no_code_twice() -> None:
    codes = [code_of(kind) for kind in STATUS]
    assert len(set(codes)) == len(codes)
    assert code_of(type("VersionNotFound", (Exception,), {})) == "version_not_found"
