"""The HTTP server of the gateway's process: says when it listens, and leaves the end to its caller."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from serving.model_server import slow_clients
from serving.model_server.rest_protocol import RESTProtocol

log = logging.getLogger(__name__)


def http_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return the settings of the gateway's HTTP port: uvicorn's own, with the short ways to predictions."""
    return uvicorn.Config(
        app,
        http=RESTProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,  # The application minds them where it needs them.
        **options,
    )


class Server(uvicorn.Server):
    """uvicorn's server, which says when it listens and returns to its caller when it is told to stop."""

    def __init__(self, config: uvicorn.Config, places: dict[str, str | int], ready_file: Path | None) -> None:
        """Take what to say, and the file to say it in."""
        super().__init__(config)
        self._places, self._ready_file = places, ready_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self._ready_file is not None:
            scratch = self._ready_file.with_suffix(".new")
            scratch.write_text(json.dumps(self._places))
            scratch.replace(self._ready_file)
        log.info("listening", extra=self._places)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM; uvicorn would send the signal again, and end us before the gateway."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    async def on_tick(self, counter: int) -> bool:
        """Look for slow clients once a second."""
        slow_clients.check_now_and_then(self.server_state.connections, counter)
        return await super().on_tick(counter)

    def _stop(self) -> None:
        self.should_exit = True


def describe_places(host: str, rest_port: int, grpc_port: int) -> dict[str, str | int]:
    """Return where to reach a gateway that listens on `host`; for all addresses, on this machine."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{near}]" if ":" in near else near
    return {
        "url": f"http://{shown}:{rest_port}",
        "grpc": f"{shown}:{grpc_port}",
        "rest_port": rest_port,
        "grpc_port": grpc_port,
        "pid": os.getpid(),
    }
