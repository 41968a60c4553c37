"""The server process: swaps under load, broken versions, config files, draining, and starts that fail."""

import asyncio
import concurrent.futures
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from serving.model_server.flags import parse
from serving.model_server.server import serve
from serving.model_server.start import StartFailed
from tests.serving.model_server.conftest import DEADLINE, Server, free_port
from tests.serving.saved_models import copy_version, corrupt_version

Start = Callable[..., Server]
QUESTION = {"instances": [2.0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Path:
    """Where the one server of this module finds models, its config file and its socket."""
    folder = tmp_path_factory.mktemp("server")
    copy_version(made / "half_plus_two", folder / "half", 1)
    write_config(folder, "half")
    return folder


def write_config(folder: Path, *names: str) -> None:
    entries = [
        f'config {{ name: "{name}" base_path: "{folder}/{name}" model_platform: "tensorflow" }}'
        for name in names
    ]
    (folder / "new.config").write_text(f"model_config_list {{ {' '.join(entries)} }}")
    (folder / "new.config").rename(folder / "models.config")


@pytest.fixture(scope="module")
def server(folder: Path, start_server: Start) -> Server:
    return start_server(
        f"--model_config_file={folder}/models.config",
        f"--grpc_socket_path={folder}/socket",
        "--model_config_file_poll_wait_seconds=1",
        "--max_num_load_retries=0",
        model="half",
    )


def test_no_request_fails_in_swaps_and_a_corrupt_version_disturbs_nobody(
    server: Server, made: Path, folder: Path
) -> None:
    stop = threading.Event()
    rest_answers: set[float] = set()

    def ask_rest() -> None:
        with httpx.Client(base_url=server.rest, timeout=DEADLINE) as client:
            while not stop.is_set():
                response = client.post("/v1/models/half:predict", json=QUESTION)
                assert response.status_code == 200, response.text
                rest_answers.add(response.json()["predictions"][0])

    def ask_grpc() -> None:
        request = predict_pb2.PredictRequest(model_spec={"name": "half"})
        request.inputs["x"].CopyFrom(tf.make_tensor_proto([2.0], tf.float32))
        with server.channel() as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            while not stop.is_set():
                stub.Predict(request, timeout=DEADLINE)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask_rest), pool.submit(ask_grpc)]
        try:
            for number in (2, 3):
                copy_version(
                    made / ("half_plus_three" if number == 2 else "half_plus_two"), folder / "half", number
                )
                old = f"/v1/models/half/versions/{number - 1}"
                server.wait_until_answers(old, lambda r: "END" in r.text)
            corrupt_version(folder / "half", 4)
            failed = server.wait_until_answers("/v1/models/half/versions/4", lambda r: "END" in r.text)
        finally:
            stop.set()
        for future in asking:
            future.result(DEADLINE)
    assert rest_answers == {3.0, 4.0}
    status = failed.json()["model_version_status"][0]["status"]
    assert status["error_code"] != "OK"
    assert "saved_model.pb" in status["error_message"]
    assert server.post("/v1/models/half:predict", json=QUESTION).json() == {"predictions": [3.0]}


def test_the_config_file_is_read_again_and_a_broken_one_is_ignored(
    server: Server, folder: Path, made: Path
) -> None:
    (folder / "models.config").write_text("model_config_list { nonsense")
    assert server.get("/v1/models/second").status_code == 404
    copy_version(made / "half_plus_two", folder / "second", 1)
    write_config(folder, "half", "second")
    server.wait_until_answers("/v1/models/second", lambda r: "AVAILABLE" in r.text)
    assert server.post("/v1/models/half:predict", json=QUESTION).status_code == 200


def test_a_unix_socket_serves_grpc(server: Server, folder: Path) -> None:
    request = predict_pb2.PredictRequest(model_spec={"name": "half"})
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([2.0], tf.float32))
    with grpc.insecure_channel(f"unix:{folder}/socket") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        assert list(stub.Predict(request, timeout=DEADLINE).outputs["y"].float_val) == [3.0]


def test_half_closed_and_malformed_connections_do_not_disturb(server: Server) -> None:
    host, port = server.rest.removeprefix("http://").split(":")
    head = b"POST /v1/models/half:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n"
    for sent in (b"\x00\xff garbage\r\n\r\n", head + b'{"inst', head):
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(9) in (b"", b"HTTP/1.1 ")
    assert server.post("/v1/models/half:predict", json=QUESTION).status_code == 200


def test_ports_open_before_models_are_there_and_sigterm_drains(
    start_server: Start, made: Path, tmp_path: Path
) -> None:
    """At SIGTERM a request in flight still gets its answer; then the process ends with 0."""
    server = start_server("--model_name=slow", f"--model_base_path={tmp_path}/slow")
    assert server.wait_until_answers("/v1/models/slow", lambda r: True).status_code == 404
    copy_version(made / "slow", tmp_path / "slow", 1)
    server.wait_until_answers("/v1/models/slow", lambda r: "AVAILABLE" in r.text)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, "/v1/models/slow:predict", content=b'{"inputs": 1.0}')
        # By the time this one has given up, the server has read the other, and is working on it.
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.rest}/v1/models/slow:predict", content=b'{"inputs": 1.0}', timeout=0.3)
        server.process.send_signal(signal.SIGTERM)
        assert answer.result(DEADLINE).status_code == 200
    assert server.process.wait(DEADLINE) == 0


@pytest.mark.parametrize("flag", ["port", "rest_api_port"])
def test_a_taken_port_is_one_line_and_a_failed_start(tmp_path: Path, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"port": free_port()} | {flag: port}
        flags = [f"--{name}={number}" for name, number in ports.items()]
        command = [sys.executable, "-m", "serving.model_server", *flags, f"--model_base_path={tmp_path}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Cannot listen for ")
    assert done.stderr.endswith(f":{port}: Address already in use. Is the port taken?\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_list { nonsense", "Cannot use --model_config_file"),
        ('model_config_list { config { name: "m" base_path: "/m" } }', "Set model_platform"),
        (
            'model_config_list { config { name: "m" base_path: "/m" model_platform: "tensorflow" '
            'version_labels { key: "a" value: 1 } } }',
            "Failed to start server. Error: Request to assign label to version 1 of model m",
        ),
    ],
)
def test_a_config_file_that_cannot_be_used_fails_the_start(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "models.config"
    path.write_text(text)
    flags = parse([f"--model_config_file={path}", f"--port={free_port()}"])
    with pytest.raises(StartFailed, match=message):
        asyncio.run(serve(flags))
