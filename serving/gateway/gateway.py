"""The gateway: one object that answers TensorFlow Serving's REST and gRPC by the registry's labels."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from registry import Registry
from serving.gateway.access import Access
from serving.gateway.embedded import EmbeddedPath
from serving.gateway.entrance import RESTEntrance
from serving.gateway.grpc_server import GRPCServer
from serving.gateway.sidecar_path import SidecarPath
from serving.metrics import Metrics
from serving.reconciler import Reconciler
from serving.routing import Routes
from serving.runtime import EmbeddedRuntime
from serving.sidecar import SidecarRuntime

STOP_GRACE_SECONDS = 10.0


class Gateway:
    """Serves what the registry's labels name, on a runtime that it keeps in line with them.

    Used from one event loop: make it, `await start()`, mount `asgi` under `/v1/models`,
    `await serve_grpc(host, port)`, and in the end `await stop()`.

    Args:
        registry: what is wanted.
        runtime: what runs the models; `stop` closes it.
        token: the bearer token that each request must carry; empty: none is asked for.
        poll_wait_seconds: how long the reconciler waits between two looks at the registry.
        name: in reports; by default the host's name. Two gateways of one registry must not share it.
    """

    def __init__(
        self,
        registry: Registry,
        runtime: EmbeddedRuntime | SidecarRuntime,
        *,
        token: str = "",
        poll_wait_seconds: float = 0.05,
        name: str = "",
    ) -> None:
        self._runtime, self._access = runtime, Access(token)
        self._reconciler = Reconciler(
            registry,
            runtime,
            name=name or socket.gethostname(),
            poll_wait_seconds=poll_wait_seconds,
            in_flight=lambda: self._path.in_flight() if self._path else (),
            on_change=self._on_change,
        )
        self._path: EmbeddedPath | SidecarPath | None = None
        self._metrics = Metrics()
        self.asgi = RESTEntrance(self._access, self._current_path, self._metrics)
        """The ASGI application for `/v1/models/...`, TensorFlow Serving's REST API, and for `/metrics`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._grpc: GRPCServer | None = None
        self._health: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow the registry. Until it has been read, requests are answered UNAVAILABLE."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self._runtime, SidecarRuntime):
            self._path = SidecarPath(self._runtime, self.routes, self._reconciler.look_soon)
        else:
            self._path = EmbeddedPath(self._runtime, self.routes)
        self._reconciler.start()

    async def serve_grpc(self, host: str, port: int) -> int:
        """Listen for gRPC, and return the port, which the system chooses if `port` is 0.

        Raises:
            PortUnavailable: the address cannot be listened on.
        """
        if self._path is None:
            raise RuntimeError("Cannot serve gRPC before the gateway is started. Await start() first.")
        server = GRPCServer(self._access, self._path.add_services, self._metrics)
        bound = await server.start(host, port)
        self._grpc = server
        self._health = asyncio.create_task(self._keep_health(server))
        return bound

    async def stop(self) -> None:
        """Let the requests in flight end, stop following the registry, close the runtime."""
        if self._health is not None:
            self._health.cancel()
        if self._grpc is not None:
            await self._grpc.stop(STOP_GRACE_SECONDS)
        await asyncio.to_thread(self._reconciler.stop)
        if self._path is not None:
            await self._path.close()
        await asyncio.to_thread(self._runtime.close)

    def routes(self) -> Routes:
        """Return the routes in effect."""
        return self._reconciler.routes

    def wake(self) -> None:
        """Look at the registry now: something has been promoted or rolled back. Any thread may call it."""
        self._reconciler.wake()

    async def wait_applied(self, revision: int, timeout: float, model: str | None = None) -> bool:
        """Wait until requests are answered as the registry wanted at `revision`; False: not in `timeout` s.

        With `model`, only its labels are waited for. A promotion that is undone meanwhile counts as applied
        once the label is back: look at the history to tell.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed = self._changed  # taken before looking, so that no change falls in between
                    if self.routes().applied(revision, model):
                        return True
                    await changed.wait()
        except TimeoutError:
            return False

    def state(self) -> dict[str, Any]:
        """Return, as plain values, what serves and what is wrong.

        `name`, `runtime`, `healthy`, `problems` (by part, in words), `revision` (of the registry, as last
        acted upon), `settled` (every label is served as wanted), `models`: for each its `routes` (label ->
        version that answers), `labels` (label -> version wanted) and `versions` (number -> state, error).
        """
        return self._reconciler.state()

    def _current_path(self) -> EmbeddedPath | SidecarPath | None:
        return self._path

    def _on_change(self) -> None:
        """Called by the reconciler's thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._tell_waiters)

    def _tell_waiters(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _keep_health(self, server: GRPCServer) -> None:
        while True:
            changed = self._changed
            await server.set_health(self._reconciler.serving)
            await changed.wait()
