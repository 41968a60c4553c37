"""A real server of the control plane in this process, for tests of the API, the client and the command."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from appliance.api.app import build_app
from appliance.api.listening import Server, http_config
from appliance.api.operations import RegistryOperations
from appliance.trainer.jobs import JobStore
from registry import ModelState, Registry


@dataclass
class House:
    """What the server serves."""

    url: str
    registry: Registry
    jobs: JobStore
    home: Path

    def publish(self, model: str = "flights", **facts: Any) -> int:
        """Register a version and return its number."""
        folder = self.home / "export"
        folder.mkdir(exist_ok=True)
        (folder / "saved_model.pb").write_bytes(b"a graph")
        self.registry.create_model(model, exist_ok=True)
        return self.registry.publish(model, folder, **facts).version

    def report(self, model: str, **routes: int) -> None:
        """Say, as a gateway's reconciler does, where its routes go."""
        self.registry.report_serving(
            "gateway-1", self.registry.revision(), {model: ModelState(routes=routes)}
        )


@contextmanager
def running_house(home: Path, token: str = "", jobs_root: Path | None = None) -> Iterator[House]:
    """Run the control plane on a free port; predictions are answered by `answer_predictions`."""
    url = f"sqlite:///{home / 'appliance.db'}"
    registry, jobs = Registry(url, home / "models"), JobStore(url)
    app = build_app(
        RegistryOperations(registry, jobs=jobs),
        jobs,
        jobs_root=jobs_root or home / "jobs",
        token=token,
        predictions=answer_predictions,
    )
    server = ThreadServer(http_config(app, port=0), {}, None)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.listening.wait(timeout=60), "the server does not listen within 60 s"
    try:
        yield House(f"http://127.0.0.1:{server.port}", registry, jobs, home)
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server does not stop within 60 s"
        registry.close()
        jobs.close()


class ThreadServer(Server):
    """The gateway's HTTP server in a thread: without signals."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.listening = threading.Event()
        self.port = 0

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.port = self.servers[0].sockets[0].getsockname()[1]
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def answer_predictions(scope: Any, receive: Any, send: Any) -> None:
    """Answer like a model that doubles, whatever it is called; says which path it was asked at."""
    request = orjson.loads((await receive())["body"])
    if "instances" in request:
        answer = {"predictions": [double(row) for row in request["instances"]]}
    else:
        answer = {"outputs": double(request["inputs"])}
    headers = [(b"content-type", b"application/json"), (b"x-path", scope["path"].encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(answer)})


def double(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            {"b64": value["b64"]} if "b64" in value else {key: double(entry) for key, entry in value.items()}
        )
    if isinstance(value, list):
        return [double(entry) for entry in value]
    return value * 2
