"""The server: what can be called, the sockets it listens on, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from serving.grpc_transport.connection import Connection
from serving.grpc_transport.headers import Head, Metadata, Refusal
from serving.grpc_transport.limits import Limits

_BACKLOG = 2048
_CHECK_SECONDS = 1.0
_CANCEL_SECONDS = 1.0
"""How long handlers may take to end that have been cancelled."""
_UNKNOWN = Refusal(grpc.StatusCode.UNIMPLEMENTED.value[0], "Method not found!")


class CallDetails(NamedTuple):
    """What generic handlers are asked with: grpc.HandlerCallDetails."""

    method: str
    invocation_metadata: Metadata


class Server:
    """A gRPC server in the running event loop. It takes the handlers of a grpc.aio.Server.

    `gate`: sees each call before its request is read. It is given the handler found, or a Refusal, and
    returns what to go on with: that, another handler, or a Refusal.
    """

    def __init__(self, limits: Limits, gate: Callable[[CallDetails, Any], Any] | None = None) -> None:
        self.limits = limits
        self._gate = gate
        self.connections: set[Connection] = set()
        self.stopping = False
        self._methods: dict[str, Any] = {}
        self._generic: list[Any] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._paths: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._ticking: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service; generated code calls this."""
        self._methods.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Add objects that know the handlers of some methods."""
        self._generic += handlers

    def handler(self, head: Head) -> Any:
        """Return the handler of a call, or a Refusal."""
        found = self._methods.get(head.path)
        if found is not None and self._gate is None:
            return found
        details = CallDetails(head.path, head.metadata)
        if found is None:
            answers = (generic.service(details) for generic in self._generic)
            found = next((answer for answer in answers if answer is not None), _UNKNOWN)
        return found if self._gate is None else self._gate(details, found)

    async def listen_on(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket, from now on. `tls`: has to agree on h2 by ALPN."""
        with contextlib.suppress(OSError):  # A UNIX socket has no such option.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener = await self._loop.create_server(
            lambda: Connection(self), sock=bound, backlog=_BACKLOG, ssl=tls
        )
        self._listeners.append(listener)
        self._tick()

    async def listen_at(self, path: str) -> None:
        """Accept connections on a UNIX socket, from now on; one that a dead server has left is replaced.

        Raises:
            OSError: there cannot be one.
        """
        listener = await self._loop.create_unix_server(lambda: Connection(self), path, backlog=_BACKLOG)
        self._listeners.append(listener)
        self._paths.append(path)
        self._tick()

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    async def stop(self, grace: float | None) -> None:
        """Accept no more connections and calls, give those in flight `grace` seconds, and end."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        for path in self._paths:
            Path(path).unlink(missing_ok=True)
        for connection in list(self.connections):
            connection.drain()
        await self._until_empty(grace or 0.0)
        tasks = {task for connection in self.connections for task in connection.cut_off()}
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        await self._until_empty(_CANCEL_SECONDS)
        for connection in list(self.connections):
            connection.close()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _until_empty(self, seconds: float) -> None:
        self._empty.clear()
        if self.connections and seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), seconds)

    def _tick(self) -> None:
        if self._ticking is None:
            self._ticking = self._loop.call_later(_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._ticking = None
        now = self._loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self._tick()
