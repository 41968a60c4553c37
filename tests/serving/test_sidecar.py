"""A model server as a sidecar: it may be late, die, or forget; the gateway brings it back in line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc, prediction_service_pb2_grpc

from registry import Registry
from serving.sidecar import SidecarRuntime
from tests.serving.gateway_support import (
    DEADLINE_SECONDS,
    Load,
    Models,
    ModelServer,
    Running,
    predict_request,
    wait_until,
)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path / "models") as registry:
        yield Models(registry, tmp_path)


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """Start gateways; stop those still running in the end."""
    started: list[Running] = []

    def start(registry: Registry, runtime: SidecarRuntime) -> Running:
        started.append(Running(registry, runtime, name="gateway"))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def direct_prediction(server: ModelServer, model: str, **spec: object) -> int:
    """The version that the sidecar itself answers with."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        response = stub.Predict(predict_request(model, **spec), timeout=DEADLINE_SECONDS)
        return int(response.model_spec.version.value)


def direct_states(server: ModelServer, model: str) -> dict[int, str]:
    """The states of the versions as the sidecar itself tells them."""
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        statuses = stub.GetModelStatus(request, timeout=DEADLINE_SECONDS).model_version_status
    names = get_model_status_pb2.ModelVersionStatus.State
    return {status.version: names.Name(status.state) for status in statuses}


def test_it_is_waited_for_configured_killed_and_configured_again(models, model_server, run):
    """The whole life of a sidecar, under load from where it first serves."""
    model_server.kill()
    models.publish("life", 2)
    models.registry.promote("life", 1, actor="test")
    running = run(models.registry, model_server.runtime())
    problems = wait_until(lambda: running.gateway.state()["problems"], "the missing sidecar noticed")
    assert f"Cannot reach the model server at 127.0.0.1:{model_server.grpc_port}" in problems["runtime"]
    assert running.predict("life")[0] == 503

    model_server.start()
    running.wait_applied()
    assert running.predict("life") == (200, [1.0])
    running.promote("life", 2)
    wait_until(lambda: running.gateway.state()["healthy"], "healthy")

    with Load(running, "life", expected=(2.0,)) as load:
        load.wait_for_more()
        assert load.failures == []
        model_server.kill()
        wait_until(lambda: load.failures, "the death noticed by clients")
        model_server.start()
        wait_until(lambda: running.predict("life") == (200, [2.0]), "serving again")
        wait_until(lambda: running.predict_grpc("life") == 2, "serving again over gRPC")
        wait_until(lambda: running.gateway.state()["healthy"], "healthy again")
        already = len(load.failures)
        load.wait_for_more()
    assert load.failures[already + 3 :] == [], "three clients may have had a request under way"
    assert load.wrong == []
    assert all(failure.startswith(("503", "StatusCode.UNAVAILABLE", "504")) for failure in load.failures), (
        load.failures
    )
    wait_until(
        lambda: direct_states(model_server, "life") == {1: "AVAILABLE", 2: "AVAILABLE"},
        "the rollback target loaded too",
    )


def test_its_own_labels_follow_the_routes(models, model_server, run):
    models.publish("followed", 3)
    running = run(models.registry, model_server.runtime())
    running.promote("followed", 1)
    running.promote("followed", 2, label="canary")
    running.promote("followed", 3)

    def labels() -> dict[str, int] | None:
        try:
            return {
                label: direct_prediction(model_server, "followed", label=label)
                for label in ("production", "canary")
            }
        except grpc.RpcError:
            return None

    wait_until(lambda: labels() == {"production": 3, "canary": 2}, "labels in the sidecar")
    running.registry.rollback("followed", actor="test")
    running.gateway.wake()
    wait_until(lambda: labels() == {"production": 1, "canary": 2}, "the label rolled back")


def test_a_restarted_gateway_takes_over_what_it_finds(models, model_server, run):
    models.publish("taken_over", 2)
    running = run(models.registry, model_server.runtime())
    running.promote("taken_over", 1)
    second = run(models.registry, model_server.runtime())
    second.wait_applied()
    assert second.predict("taken_over") == (200, [1.0])
    second.promote("taken_over", 2)
    assert second.predict("taken_over") == (200, [2.0])


def test_a_model_without_labels_is_unloaded(models, model_server, run):
    models.publish("unlabelled", 1)
    running = run(models.registry, model_server.runtime())
    running.promote("unlabelled", 1)
    running.registry.remove_label("unlabelled", "production", actor="test")
    running.gateway.wake()
    wait_until(lambda: direct_states(model_server, "unlabelled") == {1: "END"}, "unloaded")
    assert running.predict("unlabelled")[0] == 404


def test_a_failed_version_is_tried_again_when_it_is_promoted_again(tmp_path, models, model_server, run):
    """The files were damaged where the sidecar sees them; mended there, the version is taken up."""
    models.publish("retried", 2)
    shutil.copytree(tmp_path / "models", tmp_path / "mounted")
    damaged = tmp_path / "mounted" / "retried" / "2" / "saved_model.pb"
    whole = damaged.read_bytes()
    damaged.write_bytes(b"\xff this is no protobuf")
    there = {"artifact_root": str(tmp_path / "models"), "model_root": str(tmp_path / "mounted")}
    running = run(models.registry, model_server.runtime(**there))
    running.promote("retried", 1)
    running.registry.promote("retried", 2, actor="test")
    wait_until(lambda: running.registry.labels("retried") == {"production": 1}, "undone")
    damaged.write_bytes(whole)
    running.promote("retried", 2)
    assert running.predict("retried") == (200, [2.0])


def test_base_paths_are_given_as_the_sidecar_sees_them(tmp_path, models, model_server, run):
    """In compose the artifacts are mounted at one place here and at another there."""
    (tmp_path / "mounted").symlink_to(tmp_path / "models")
    models.publish("mounted", 1)
    there = {"artifact_root": str(tmp_path / "models"), "model_root": str(tmp_path / "mounted")}
    runtime = model_server.runtime(**there)
    running = run(models.registry, runtime)
    running.promote("mounted", 1)
    assert running.predict("mounted") == (200, [1.0])
    assert runtime.base_path(f"{tmp_path}/models/mounted") == f"{tmp_path}/mounted/mounted"
    assert runtime.base_path("/elsewhere/mounted") == "/elsewhere/mounted"
