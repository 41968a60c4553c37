"""How SidecarRuntime takes those answers of TensorFlow Serving that `serving.model_server` never gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2, model_service_pb2_grpc

from serving import sidecar
from serving.runtime import Load, RuntimeUnavailable
from serving.sidecar import SidecarRuntime
from tests.waiting import wait_until


class StrictServer(model_service_pb2_grpc.ModelServiceServicer):
    """A ModelService with one model; it refuses, or holds the call, as the test says."""

    def __init__(self) -> None:
        self.requests: list[model_management_pb2.ReloadConfigRequest] = []
        self.versions: dict[int, int] = {}
        self.refuse_labels = False
        self.hold: threading.Event | None = None

    def GetModelStatus(self, request, context):
        if not self.versions:
            context.abort(grpc.StatusCode.NOT_FOUND, "Could not find any versions of model census")
        response = get_model_status_pb2.GetModelStatusResponse()
        for version, state in self.versions.items():
            response.model_version_status.add(version=version, state=state)
        return response

    def HandleReloadConfigRequest(self, request, context):
        self.requests.append(request)
        if self.hold is not None:
            self.hold.wait(60)
        if self.refuse_labels and request.config.model_config_list.config[0].version_labels:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Request to assign label to version 1 ...")
        return model_management_pb2.ReloadConfigResponse()


@pytest.fixture
def strict() -> Iterator[tuple[StrictServer, SidecarRuntime]]:
    service = StrictServer()
    server = grpc.server(ThreadPoolExecutor(4))
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    runtime = SidecarRuntime(f"127.0.0.1:{port}", "http://127.0.0.1:1")
    yield service, runtime
    runtime.close()
    if service.hold is not None:
        service.hold.set()
    server.stop(None).wait()


def load(*versions: int, **labels: int) -> list[Load]:
    return [Load("census", "/models/census", versions, labels)]


def sent(service: StrictServer) -> list[tuple[list[int], dict[str, int]]]:
    configs = [request.config.model_config_list.config[0] for request in service.requests]
    return [(list(c.model_version_policy.specific.versions), dict(c.version_labels)) for c in configs]


def test_the_whole_configuration_is_sent_once(strict):
    service, runtime = strict
    service.versions = {1: 30, 2: 30}
    for _ in range(20):
        runtime.states(["census"])
        runtime.apply(load(1, 2, production=2))
    wait_until(lambda: sent(service), "the call")
    assert sent(service) == [([1, 2], {"production": 2})]
    config = service.requests[0].config.model_config_list.config[0]
    assert (config.name, config.base_path, config.model_platform) == (
        "census",
        "/models/census",
        "tensorflow",
    )


def test_a_refused_label_is_sent_again_until_it_is_taken(strict):
    service, runtime = strict
    service.versions = {1: 30}
    service.refuse_labels = True

    def apply() -> int:
        runtime.states(["census"])
        runtime.apply(load(1, production=1))
        return len(service.requests)

    wait_until(lambda: apply() >= 2, "a second try")
    service.refuse_labels = False
    tries = len(service.requests)
    wait_until(lambda: apply() > tries and runtime._accepted == tuple(load(1, production=1)), "acceptance")


def test_a_server_that_holds_the_call_is_not_sent_the_same_again(strict, monkeypatch):
    """Each such call would block a thread of TensorFlow Serving more, until none is left for predictions."""
    service, runtime = strict
    monkeypatch.setattr(sidecar, "RELOAD_TIMEOUT_SECONDS", 0.2)
    service.hold = threading.Event()

    def apply(*versions: int) -> bool:
        runtime.states(["census"])
        runtime.apply(load(*versions))
        return runtime._accepted == tuple(load(*versions))

    wait_until(lambda: apply(1), "the deadline")
    for _ in range(50):
        apply(1)
    assert len(service.requests) == 1
    wait_until(lambda: apply(1, 2), "a changed configuration")
    assert sent(service) == [([1], {}), ([1, 2], {})]


def test_a_server_that_forgot_is_told_again(strict):
    service, runtime = strict
    service.versions = {1: 30}

    def apply() -> int:
        runtime.states(["census"])
        runtime.apply(load(1))
        return len(service.requests)

    wait_until(lambda: apply() == 1 and runtime._accepted, "the call")
    service.versions = {}
    wait_until(lambda: apply() == 2, "the second call")


def test_nobody_there_is_said_with_the_remedy():
    runtime = SidecarRuntime("127.0.0.1:1", "http://127.0.0.1:1")
    with pytest.raises(RuntimeUnavailable, match=r"127\.0\.0\.1:1: UNAVAILABLE.*APPLIANCE_SIDECAR_GRPC"):
        runtime.states(["census"])
    runtime.close()
