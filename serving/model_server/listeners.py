"""The two ways in: a gRPC server and a REST server in the running event loop, as the flags say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc
import uvicorn

from serving import metrics as metrics_page
from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.grpc_transport import Server, limits_from
from serving.manager import ModelManager
from serving.metrics import Metrics, Snapshot
from serving.model_server import settings, slow_clients, start
from serving.model_server.flags import Flags
from serving.model_server.grpc_service import add_services
from serving.model_server.rest import RESTApp
from serving.model_server.rest_protocol import RESTProtocol
from serving.model_server.start import StartFailed

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""How long SIGTERM waits for requests in flight."""


@dataclass(frozen=True, slots=True)
class RESTServer:
    """A REST server that runs as a task."""

    server: uvicorn.Server
    task: asyncio.Task[None]

    async def stop(self) -> None:
        """Take no more requests, and wait for those in flight."""
        self.server.should_exit = True
        await self.task


class Stoppable(Protocol):
    """A gRPC server that runs."""

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, and give those in flight `grace` seconds."""


class Standing(Protocol):
    """How a process that serves stands to others: alone, or as one of several workers."""

    stopping: asyncio.Event
    """Set when the server should drain and end."""
    shares_ports: bool

    def begin(self, manager: ModelManager, metrics: Metrics | None) -> None:
        """Give the manager its models."""

    async def ready_to_listen(self) -> None:
        """Return when ports should be opened."""

    def listener(self) -> socket.socket:
        """Return the socket for REST, bound."""

    async def listening(self) -> None:
        """Do what is to be done once all ports are open."""

    async def reload(self, data: bytes) -> None:
        """Apply a ReloadConfigRequest."""

    async def figures(self) -> Snapshot:
        """Return the metrics of the whole server."""


async def start_grpc(
    flags: Flags, dataplane: DataPlane, dispatcher: Dispatcher, metrics: Metrics | None, standing: Standing
) -> Stoppable | None:
    """Start the gRPC server; None: the flags ask for none.

    It is `serving.grpc_transport`, unless something is asked for that only grpc.aio has: ALTS, or a channel
    argument that sets more than the size of messages and the number of calls.

    Raises:
        StartFailed: an address cannot be listened on.
    """
    if not flags.port and not flags.grpc_socket_path:
        return None
    add = partial(
        add_services,
        dataplane=dataplane,
        dispatcher=dispatcher,
        tensor_content=flags.enable_serialization_as_tensor_content,
        metrics=metrics,
        reload=standing.reload,
    )
    options = settings.grpc_options(flags, shared_port=standing.shares_ports)
    limits = limits_from(options)
    if limits is None or flags.use_alts_credentials:
        return await _start_grpc_aio(flags, options, add)
    server = Server(limits)
    add(server)
    await _open(server, flags, shared_port=standing.shares_ports)
    return server


async def _open(server: Server, flags: Flags, *, shared_port: bool) -> None:
    context = settings.grpc_ssl(flags)
    if flags.port:
        for bound in start.listen_all(flags.host, flags.port, "gRPC", shared=shared_port):
            await server.listen_on(bound, context)
    if flags.grpc_socket_path:
        try:
            await server.listen_at(flags.grpc_socket_path)
        except OSError as error:
            raise StartFailed(
                f"Cannot listen for gRPC on unix:{flags.grpc_socket_path}: {error.strerror or error}. "
                "Is there a folder for it, and no other file of that name?"
            ) from error


async def _start_grpc_aio(
    flags: Flags, options: list[tuple[str, Any]], add: Callable[[grpc.aio.Server], None]
) -> grpc.aio.Server:
    server = grpc.aio.server(options=options)
    add(server)
    addresses = [f"{flags.host}:{flags.port}"] if flags.port else []
    if flags.grpc_socket_path:
        addresses.append(f"unix:{flags.grpc_socket_path}")
    credentials = settings.grpc_credentials(flags)
    for address in addresses:
        _listen(server, address, None if address.startswith("unix:") else credentials)
    await server.start()
    return server


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> None:
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise StartFailed(f"Cannot listen for gRPC on {address}: {error}. Is the port taken?") from error
    if not bound:
        raise StartFailed(f"Cannot listen for gRPC on {address}. Is the port taken?")


async def start_rest(
    flags: Flags, dataplane: DataPlane, dispatcher: Dispatcher, metrics: Metrics | None, standing: Standing
) -> RESTServer | None:
    """Start the REST server; None: the flags ask for none.

    Raises:
        StartFailed: the address cannot be listened on.
    """
    if not flags.rest_api_port:
        return None
    if flags.rest_api_port == flags.port:
        log.warning("rest_skipped", extra={"reason": "--rest_api_port equals --port", "port": flags.port})
        return None
    listener = standing.listener()

    async def show_metrics() -> str:
        return metrics_page.page(await standing.figures())

    app = RESTApp(
        dataplane,
        dispatcher=dispatcher,
        timeout_seconds=flags.rest_api_timeout_in_ms / 1000 if flags.rest_api_timeout_in_ms > 0 else None,
        cors=flags.rest_api_enable_cors_support,
        metrics=metrics,
        pages={settings.metrics_path(flags): show_metrics} if metrics else {},
    )
    server = uvicorn_server(app, settings.rest_ssl(flags))
    return RESTServer(server, asyncio.create_task(server.serve(sockets=[listener])))


class _Uvicorn(uvicorn.Server):
    """Uvicorn that leaves the signals to this process's own handlers, and does not wait for slow clients."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Look for slow clients once a second."""
        slow_clients.check_now_and_then(self.server_state.connections, counter)
        return await super().on_tick(counter)


def uvicorn_server(app: Any, context: ssl.SSLContext | None = None) -> uvicorn.Server:
    """Return a uvicorn server set up for short requests: its fast parser, no logging of each, no extra
    headers."""
    config = uvicorn.Config(
        app,
        http=RESTProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(DRAIN_SECONDS),
    )
    config.load()
    config.ssl = context
    return _Uvicorn(config)
