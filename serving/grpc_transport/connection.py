"""One connection of a server: how it begins, what comes from its client beside `Link`, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import grpc

from serving.grpc_transport import frames, headers
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.limits import (
    CONNECTION_WINDOW,
    LINGER_SECONDS,
    MAX_FRAME_SIZE,
    MAX_HEADER_BYTES,
    READ_SECONDS,
    SILENT_SECONDS,
    STREAM_WINDOW,
)
from serving.grpc_transport.link import Link
from serving.grpc_transport.patience import FrameClock, overdue
from serving.grpc_transport.streams import Methods, Streams

log = logging.getLogger(__name__)

_DRAIN_PING = b"draining"
_WATCH = "/grpc.health.v1.Health/Watch"
"""A call that has no end of its own: a stop does not wait for it."""
_STOPPING = (grpc.StatusCode.UNAVAILABLE.value[0], "The server is stopping.")


class Host(Methods, Protocol):
    """What a connection needs of its server."""

    connections: set[Connection]
    stopping: bool

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""


class Connection(Link):
    """The server's end of a connection."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._streams: Streams
        self._heads = headers.HeadReader()
        self._preface = b""
        self._greeted = False  # The preface has come.
        self._since = asyncio.get_running_loop().time()
        self._clock = FrameClock()
        self._draining_since: float | None = None

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what is granted."""
        super().connection_made(transport)
        peer = _address(transport.get_extra_info("peername"))
        self._streams = Streams(self._host, self._sender, self._allowance, peer, self._when_empty)
        self._host.connections.add(self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._fail(ConnectionFault(ErrorCode.PROTOCOL_ERROR, "TLS without h2 by ALPN"))
            return
        settings = {
            frames.MAX_CONCURRENT_STREAMS: self._host.limits.max_streams,
            frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            frames.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        more = CONNECTION_WINDOW - frames.DEFAULT_WINDOW
        self._transport.write(frames.settings_frame(settings) + frames.window_update(0, more))
        if self._host.stopping:
            self.drain()  # It was accepted in the last moment.

    def connection_lost(self, error: Exception | None) -> None:
        """Give up all calls."""
        self._over_since = self._over_since or self._since
        self._streams.give_up_all()
        self._host.closed(self)

    # What comes from the client.

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        if not self._greeted and self._over_since is None:
            try:
                data = self._take_preface(data)
            except ConnectionFault as fault:
                self._fail(fault)
                return
        super().data_received(data)

    def _take_preface(self, data: bytes) -> bytes:
        missing = len(frames.PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if not frames.PREFACE.startswith(self._preface):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 without upgrade")
        self._greeted = len(self._preface) == len(frames.PREFACE)
        return data[missing:]

    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        done = bool(flags & frames.END_STREAM)
        if self._streams.known(number):
            self._heads.fields(block)  # Trailers say nothing to gRPC, but the table has to know them.
            self._streams.take_trailers(number, done)
            return
        if not number & 1 or number <= self._streams.last:
            text = f"HEADERS for stream {number} after stream {self._streams.last}"
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, text)
        self._streams.last = number
        try:
            head = self._heads.read(block)
        except StreamFault as fault:
            self._streams.reset(number, fault.code)
            return
        self._streams.begin(number, head, done)

    def _answered(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._draining_since is not None:
            self._refuse_more()

    # How it ends.

    def drain(self) -> None:
        """Have the client send no more calls, and close once those there are have their answers.

        What the client has sent before it hears of this is still answered: the second GOAWAY, with the number
        of the last stream, goes out when a PING has come back.
        """
        if self._over_since is not None or self._draining_since is not None:
            return
        self._draining_since = asyncio.get_running_loop().time()
        self._transport.write(
            frames.goaway(frames.LAST_STREAM, ErrorCode.NO_ERROR, "the server is stopping")
            + frames.frame(frames.PING, 0, 0, _DRAIN_PING)
        )
        self._streams.end_all(*_STOPPING, path=_WATCH)

    def _refuse_more(self) -> None:
        if not self._streams.refusing:
            self._streams.refusing = True
            self._transport.write(frames.goaway(self._streams.last, ErrorCode.NO_ERROR))
            if not self._streams.open:
                self._when_empty()

    def _when_empty(self) -> None:
        if self._streams.refusing and self._over_since is None:
            self._end()

    def cut_off(self) -> set[asyncio.Task[None]]:
        """End all calls as unavailable, and the connection; return the handlers that have been told so."""
        tasks = set(self._streams.tasks)
        if self._over_since is None:
            self._streams.end_all(*_STOPPING)
            self._end()
        return tasks

    def close(self) -> None:
        """Close, whatever the client still has to read."""
        self._transport.abort()

    def _fail(self, fault: ConnectionFault) -> None:
        log.info("grpc_connection_failed", extra={"client": self._streams.peer, "fault": str(fault)})
        self._streams.give_up_all()
        if self._over_since is None:
            self._transport.write(frames.goaway(self._streams.last, fault.code, fault.text))
            self._end()

    def _end(self) -> None:
        """Close when the client does: it may lose our last words if we close while it still sends."""
        if self._over_since is not None:
            return
        self._over_since = asyncio.get_running_loop().time()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def check(self, now: float) -> None:
        """Do not wait for a client any longer than is fair. To be called once a second."""
        self._allowance.refill()
        if self._over_since is not None:
            if now - self._over_since > LINGER_SECONDS:
                self._transport.abort()
            return
        waits = self._clock.seconds(self._frames, self._block is not None, now)
        if waits > READ_SECONDS or (not self._settled and now - self._since > SILENT_SECONDS):
            self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too slow"))
            return
        if self._paused_since is not None and now - self._paused_since > SILENT_SECONDS:
            self._transport.abort()
            return
        for stream in overdue(self._streams.open.values(), now):
            self._streams.end(stream.id, ErrorCode.CANCEL)
        if self._draining_since is not None and now - self._draining_since > LINGER_SECONDS:
            self._refuse_more()


def _address(name: object) -> str:
    """Return a client's address as gRPC writes it."""
    match name:
        case (str(host), int(port), *rest):
            return f"ipv6:[{host}]:{port}" if rest else f"ipv4:{host}:{port}"
    return "unix:"
