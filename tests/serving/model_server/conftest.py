"""SavedModels, managers and server processes for the tests of the model server."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import httpx
import pytest

from serving.dataplane import DataPlane
from serving.manager import ModelConfig, ModelManager
from serving.model_server.rest import RESTApp
from tests import waiting
from tests.serving import saved_models

T = TypeVar("T")
DEADLINE = 120.0
PREDICT = "/v1/models/half_plus_two:predict"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every SavedModel the tests use."""
    folder = tmp_path_factory.mktemp("saved_models")
    saved_models.half_plus(folder / "half_plus_two")
    saved_models.half_plus(folder / "half_plus_three", 3.0)
    saved_models.kinds(folder / "kinds")
    saved_models.modern(folder / "modern")
    saved_models.table(folder / "table")
    saved_models.slow(folder / "slow")
    return folder


@pytest.fixture
def new_manager() -> Iterator[Callable[..., ModelManager]]:
    """Makes managers that look at their folders often and do not try failed loads again; closes them
    afterwards."""
    managers = []

    def make(**options: object) -> ModelManager:
        settings = {"poll_wait_seconds": 0.02, "max_load_retries": 0, "load_retry_seconds": 0.01} | options
        managers.append(ModelManager(**settings))
        return managers[-1]

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture(scope="module")
def serving(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelManager]:
    """One manager with every model loaded, for tests that change nothing."""
    base = tmp_path_factory.mktemp("bases")
    manager = ModelManager(poll_wait_seconds=0)
    names = ["half_plus_two", "kinds", "modern", "table", "slow"]
    for name in names:
        saved_models.copy_version(made / name, base / name, 1)
    manager.apply([ModelConfig(name, base / name) for name in names])
    assert manager.wait_for(lambda: manager.settled(names), DEADLINE)
    assert manager.failures(names) == {}
    yield manager
    manager.close()


@dataclass
class Server:
    """A model server in a process of its own."""

    process: subprocess.Popen[bytes]
    rest: str
    grpc: str

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.grpc)

    def post(self, path: str, **arguments: object) -> httpx.Response:
        return httpx.post(self.rest + path, timeout=DEADLINE, **arguments)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.rest + path, timeout=DEADLINE)

    def wait_until_answers(self, path: str, accept: Callable[[httpx.Response], bool]) -> httpx.Response:
        """Ask until the answer is acceptable."""

        def ask() -> httpx.Response | None:
            try:
                response = self.get(path)
            except httpx.TransportError:
                assert self.process.poll() is None, "the server ended"
                return None
            return response if accept(response) else None

        return wait_until(ask)


def wait_until(condition: Callable[[], T | None]) -> T:
    """Return what the condition gives as soon as it is true."""
    return waiting.wait_until(condition, seconds=DEADLINE)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts model servers with the given flags, and stops them afterwards."""
    servers: list[Server] = []

    def start(*flags: str, model: str | None = None) -> Server:
        port, rest_port = free_port(), free_port()
        command = [
            sys.executable,
            "-m",
            "serving.model_server",
            f"--port={port}",
            f"--rest_api_port={rest_port}",
        ]
        process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
        server = Server(process, f"http://127.0.0.1:{rest_port}", f"127.0.0.1:{port}")
        servers.append(server)
        if model is not None:
            server.wait_until_answers(
                f"/v1/models/{model}", lambda r: r.status_code == 200 and "AVAILABLE" in r.text
            )
        return server

    yield start
    for server in servers:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=DEADLINE)


@pytest.fixture(scope="module")
def app(serving: ModelManager) -> RESTApp:
    return RESTApp(DataPlane(serving))
