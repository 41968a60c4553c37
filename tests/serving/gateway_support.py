"""A running gateway, a model server as its sidecar, tiny models, and clients that never stop asking."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import uvloop
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from registry import Registry
from serving.gateway import EmbeddedRuntime, Gateway, SidecarRuntime
from serving.model_server.listeners import uvicorn_server
from tests.waiting import DEADLINE_SECONDS, wait_until


def save_model(directory: Path, value: float) -> Path:
    """A model that answers `value` for each row: by predict, classify (as the score) and regress."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        examples = tf.compat.v1.placeholder(tf.string, [None], name="examples")
        y = tf.fill(tf.shape(x), value)
        scores = tf.fill([tf.shape(examples)[0], 1], value)
        info = tf.compat.v1.saved_model.build_tensor_info
        definition = tf.compat.v1.saved_model.build_signature_def
        signatures = {
            "serving_default": definition({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict"),
            "score": definition(
                {"inputs": info(examples)}, {"scores": info(scores)}, "tensorflow/serving/classify"
            ),
            "value": definition(
                {"inputs": info(examples)}, {"outputs": info(scores)}, "tensorflow/serving/regress"
            ),
        }
        builder = tf.compat.v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return directory


class Models:
    """A registry, and models whose version n answers n."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry, self._folder = registry, folder

    def publish(self, model: str, versions: int) -> None:
        """Add versions to a model, which is made when it is not there."""
        self.registry.create_model(model, exist_ok=True)
        for _ in range(versions):
            number = len(self.registry.versions(model)) + 1
            directory = self._folder / f"constant-{number}"
            if not directory.exists():
                save_model(directory, float(number))
            assert self.registry.publish(model, directory).version == number

    def publish_corrupt(self, model: str) -> int:
        """Add a version that no runtime can load."""
        directory = self._folder / "corrupt"
        directory.mkdir(exist_ok=True)
        (directory / "saved_model.pb").write_bytes(b"\xff this is no protobuf")
        return self.registry.publish(model, directory).version


class Running:
    """A gateway in a thread of its own, on real ports."""

    def __init__(self, registry: Registry, runtime: EmbeddedRuntime | SidecarRuntime, **options: Any) -> None:
        self.gateway = Gateway(registry, runtime, **options)
        self.registry = registry
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.rest_port = self._socket.getsockname()[1]
        self.grpc_port = self.run(self._start())

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine in the gateway's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_SECONDS)

    async def _start(self) -> int:
        await self.gateway.start()
        self._server = uvicorn_server(self.gateway.asgi)
        self._serving = asyncio.create_task(self._server._serve([self._socket]))
        return await self.gateway.serve_grpc("127.0.0.1", 0)

    def stop(self) -> None:
        """Stop everything."""

        async def stop() -> None:
            self._server.should_exit = True
            await self._serving
            await self.gateway.stop()

        self.run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_applied(self, model: str | None = None) -> None:
        """Wait until the gateway serves what the registry wants now."""
        applied = self.gateway.wait_applied(self.registry.revision(), DEADLINE_SECONDS, model)
        assert self.run(applied), self.gateway.state()

    def promote(self, model: str, version: int, **options: Any) -> None:
        """Promote, and wait until it is served."""
        self.registry.promote(model, version, actor="test", **options)
        self.gateway.wake()
        self.wait_applied(model)

    def roll_back(self, model: str, **options: Any) -> None:
        """Roll back, and wait until it is served."""
        self.registry.rollback(model, actor="test", **options)
        self.gateway.wake()
        self.wait_applied(model)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send one REST request; return status and parsed answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.rest_port, timeout=DEADLINE_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def predict(self, where: str) -> tuple[int, Any]:
        """Predict one row over REST; `where` is like `census` or `census/versions/2`."""
        status, answer = self.request("POST", f"/v1/models/{where}:predict", {"instances": [0.0]})
        return status, answer["predictions"] if status == 200 else answer["error"]

    def predict_grpc(self, model: str) -> int | None:
        """The version that answers over gRPC; None when none does."""
        with self.channel() as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            try:
                response = stub.Predict(predict_request(model), timeout=DEADLINE_SECONDS)
            except grpc.RpcError:
                return None
        return int(response.model_spec.version.value)

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A gRPC channel to the gateway."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            yield channel


def predict_request(model: str, rows: int = 1, version: int | None = None, label: str = "") -> Any:
    """A PredictRequest for the constant models."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    if version is not None:
        request.model_spec.version.value = version
    if label:
        request.model_spec.version_label = label
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.zeros(rows, np.float32)))
    return request


@dataclass
class Load:
    """Clients that ask for a model's prediction without a pause, over REST and gRPC, until stopped."""

    running: Running
    model: str
    answers: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    expected: tuple[float, ...] = ()
    wrong: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._rest, self._rest, self._grpc)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int = 100) -> None:
        """Wait until so many requests more have ended."""
        goal = len(self.answers) + len(self.failures) + count
        wait_until(lambda: len(self.answers) + len(self.failures) >= goal, f"{count} more answers")

    def _note(self, expected: tuple[float, ...], answer: float) -> None:
        """`expected`: before the request; what was expected when the answer came counts as well."""
        self.answers.append(answer)
        if expected and answer not in (*expected, *self.expected):
            self.wrong.append((answer, expected))

    def _rest(self) -> None:
        body = json.dumps({"instances": [0.0]})
        connection = http.client.HTTPConnection("127.0.0.1", self.running.rest_port, timeout=DEADLINE_SECONDS)
        while not self._stop.is_set():
            expected = self.expected
            connection.request("POST", f"/v1/models/{self.model}:predict", body)
            response = connection.getresponse()
            text = response.read()
            if response.status == 200:
                self._note(expected, json.loads(text)["predictions"][0])
            else:
                self.failures.append(f"{response.status} {text.decode()}")
        connection.close()

    def _grpc(self) -> None:
        request = predict_request(self.model)
        with self.running.channel() as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            while not self._stop.is_set():
                expected = self.expected
                try:
                    outputs = stub.Predict(request, timeout=DEADLINE_SECONDS).outputs
                except grpc.RpcError as error:
                    self.failures.append(f"{error.code()} {error.details()}")
                else:
                    self._note(expected, float(tf.make_ndarray(outputs["y"])[0]))


class ModelServer:
    """A `python -m serving.model_server`, started with an empty configuration as a sidecar is."""

    def __init__(self, folder: Path) -> None:
        self._config = folder / "empty.config"
        self._config.write_text("model_config_list {}\n")
        self._log = folder / "model_server.log"
        self.grpc_port, self.rest_port = _free_port(), _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, on the ports it had before."""
        flags = (
            f"--port={self.grpc_port}",
            f"--rest_api_port={self.rest_port}",
            f"--model_config_file={self._config}",
            "--max_num_load_retries=0",
        )
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "serving.model_server", *flags]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
            )

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def runtime(self, **options: Any) -> SidecarRuntime:
        """A runtime that drives it."""
        return SidecarRuntime(f"127.0.0.1:{self.grpc_port}", f"http://127.0.0.1:{self.rest_port}", **options)

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
