"""Several workers behind the same ports: they take turns, are replaced, agree on models and metrics."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from google.protobuf import text_format
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
)

from tests.serving.model_server.conftest import DEADLINE, Server, free_port, wait_until
from tests.serving.saved_models import copy_version

QUESTION = {"instances": [2.0]}
STABLE = "/v1/models/half/labels/stable:predict"
OK_COUNT = ':tensorflow:serving:request_count{model_name="half",status="OK"} '


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    for name, source in (("half", "half_plus_two"), ("more", "half_plus_three"), ("slow", "slow")):
        copy_version(made / source, folder / name, 1)
    (folder / "models").write_text(f"model_config_list {{ {entry(folder, 'half')} }}")
    (folder / "monitoring").write_text("prometheus_config { enable: true }")
    return folder


def entry(folder: Path, name: str, more: str = "") -> str:
    return f'config {{ name: "{name}" base_path: "{folder}/{name}" model_platform: "tensorflow" {more} }}'


@pytest.fixture(scope="module")
def server(folder: Path, start_server: Callable[..., Server]) -> Server:
    server = start_server(
        f"--model_config_file={folder}/models",
        f"--monitoring_config_file={folder}/monitoring",
        "--workers=2",
        model="half",
    )
    wait_until(lambda: len(answering(server, 40)) == 2)
    wait_until(lambda: statuses(server, "/v1/models/half/metadata") == {200})
    return server


def ask(server: Server, path: str, question: object = None) -> tuple[int, object]:
    """Ask on a connection of its own."""
    with closing(HTTPConnection(server.rest.removeprefix("http://"), timeout=DEADLINE)) as connection:
        body = None if question is None else json.dumps(question)
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def statuses(server: Server, path: str) -> set[int]:
    """Ask on so many connections that each worker is among those that answer."""
    return {ask(server, path)[0] for _ in range(40)}


def workers(server: Server) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process(server.process.pid).children()
        if "serving.model_server.worker" in child.cmdline()
    ]


def reload(server: Server, *entries: str, timeout: float = DEADLINE) -> None:
    text = f"config {{ model_config_list {{ {' '.join(entries)} }} }}"
    request = text_format.Parse(text, model_management_pb2.ReloadConfigRequest())
    with server.channel() as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        stub.HandleReloadConfigRequest(request, timeout=timeout)


def counted(server: Server) -> int:
    page = server.get("/monitoring/prometheus/metrics").text
    found = re.search(re.escape(OK_COUNT) + r"(\d+)", page)
    return int(found[1]) if found else 0


def test_all_workers_serve_and_their_metrics_are_added_up(server: Server) -> None:
    before = counted(server)
    for _ in range(30):
        assert ask(server, "/v1/models/half:predict", QUESTION) == (200, {"predictions": [3.0]})
    assert counted(server) - before == 30
    assert len(workers(server)) == 2


def answering(server: Server, connections: int) -> set[int]:
    """Return the processes that have the other ends of so many new connections to REST."""
    address = server.rest.removeprefix("http://")
    port = int(address.rsplit(":", 1)[1])
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            connection = stack.enter_context(closing(HTTPConnection(address, timeout=DEADLINE)))
            connection.request("GET", "/v1/models/half")
            assert connection.getresponse().read()
        return {
            worker.pid
            for worker in workers(server)
            for connection in worker.net_connections("tcp")
            if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port
        }


def test_a_reload_over_grpc_reaches_all_workers(server: Server, folder: Path) -> None:
    reload(server, entry(folder, "half"), entry(folder, "more"))
    for _ in range(30):
        assert ask(server, "/v1/models/more:predict", QUESTION) == (200, {"predictions": [4.0]})
    label = 'version_labels { key: "stable" value: 1 }'
    reload(server, entry(folder, "half", label), entry(folder, "more"))
    for _ in range(30):
        assert ask(server, STABLE, QUESTION) == (200, {"predictions": [3.0]})


def test_a_refused_reload_changes_no_worker(server: Server, folder: Path) -> None:
    wrong = 'version_labels { key: "stable" value: 7 }'
    with pytest.raises(grpc.RpcError, match="Request to assign label to version 7") as error:
        reload(server, entry(folder, "half", wrong))
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert statuses(server, "/v1/models/more") == {200}


def test_a_reload_that_is_given_up_does_not_stop_the_next(server: Server, folder: Path) -> None:
    with pytest.raises(grpc.RpcError) as error:
        reload(server, entry(folder, "half"), entry(folder, "more"), entry(folder, "nowhere"), timeout=1)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    label = 'version_labels { key: "stable" value: 1 }'
    reload(server, entry(folder, "half", label), entry(folder, "more"))
    assert statuses(server, "/v1/models/more") == {200}


def test_a_dead_worker_is_replaced_by_one_that_knows_the_last_configuration(
    server: Server, folder: Path
) -> None:
    """No client is refused meanwhile, and what was counted stays counted."""
    before = counted(server)
    victim = workers(server)[0]
    victim.kill()
    victim.wait(DEADLINE)
    wait_until(lambda: len(workers(server)) == 2)
    survivors = {worker.pid for worker in workers(server)}

    def joined() -> bool:
        assert ask(server, STABLE, QUESTION) == (200, {"predictions": [3.0]})
        return len(answering(server, 20)) == 2

    wait_until(joined)
    assert {worker.pid for worker in workers(server)} == survivors
    assert statuses(server, "/v1/models/more") == {200}
    assert counted(server) >= before


def test_grpc_answers_from_any_worker(server: Server) -> None:
    request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "half"})
    for number in range(10):
        options = [("grpc.use_local_subchannel_pool", 1), ("appliance.number", number)]
        with grpc.insecure_channel(server.grpc, options) as channel:
            answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(
                request, timeout=DEADLINE
            )
        assert answer.model_version_status[0].version == 1


def test_sigterm_drains_every_worker(server: Server, folder: Path) -> None:
    reload(server, entry(folder, "slow"))
    processes = workers(server)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(server.post, "/v1/models/slow:predict", content=b'{"inputs": 1.0}') for _ in range(4)
        ]
        # By the time this one has given up, the others have been read, and are being worked on.
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.rest}/v1/models/slow:predict", content=b'{"inputs": 1.0}', timeout=0.5)
        server.process.send_signal(signal.SIGTERM)
        assert [answer.result(DEADLINE).status_code for answer in asked] == [200] * 4
    assert server.process.wait(DEADLINE) == 0
    assert not any(process.is_running() for process in processes)


def test_what_cannot_start_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("model_config_list { nonsense")
    flags = [f"--model_config_file={tmp_path}/models", f"--port={free_port()}", "--workers=2"]
    done = subprocess.run(
        [sys.executable, "-m", "serving.model_server", *flags],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 1
    assert "Cannot use --model_config_file" in done.stderr
