"""A service with every kind of call, and an independent HTTP/2 client over memory instead of sockets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings

from serving.grpc_transport import Limits, Server, at_once
from serving.grpc_transport.connection import Connection

DEADLINE = 60.0
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Unary"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Echo:
    """Answers with what it was asked, in as many messages."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()

    @at_once
    async def unary(self, request: bytes, context: Any) -> bytes:
        if request == b"fail":
            raise ValueError("no")
        if request == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "100% é\n", (("k", "v"), ("k-bin", b"\x00\xff")))
        if request == b"metadata":
            return repr(context.invocation_metadata()).encode()
        if request == b"wait":
            await self.wait()
        return request

    async def wait(self) -> None:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def in_task(self, request: bytes, context: Any) -> bytes:
        assert asyncio.current_task() is not None
        return request

    async def parts(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(4):
            yield request * number

    async def written(self, request: bytes, context: Any) -> None:
        await context.write(request)
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "after one")

    async def count(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return str([len(request) async for request in requests]).encode()

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request + b"!"

    def handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            "test.Echo",
            {
                "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "InTask": grpc.unary_unary_rpc_method_handler(self.in_task),
                "Parts": grpc.unary_stream_rpc_method_handler(self.parts),
                "Written": grpc.unary_stream_rpc_method_handler(self.written),
                "Count": grpc.stream_unary_rpc_method_handler(self.count),
                "Both": grpc.stream_stream_rpc_method_handler(self.both),
            },
        )


def echo_server(limits: Limits | None = None) -> tuple[Server, Echo]:
    """Return a server with the service. To be called in a running loop."""
    server, echo = Server(limits or Limits()), Echo()
    server.add_generic_rpc_handlers((echo.handlers(),))
    return server, echo


class Memory(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.protocol = protocol
        self.out = bytearray()
        self.ended = self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        assert self.closed or not self.ended, "written after the end: uvloop raises RuntimeError"
        if not self.closed:
            self.out += data

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = self.closed = True

    close = abort

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        data, self.out = bytes(self.out), bytearray()
        return data


@dataclass
class Answer:
    """What came on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str | None:
        return (self.trailers or self.headers).get("grpc-status")


class Client:
    """The h2 package as a client of one connection."""

    def __init__(self, server: Server, *, grants: bool = True, window: int | None = None) -> None:
        """`grants`: give back windows as data comes. `window`: the initial one of streams."""
        config = h2.config.H2Configuration(
            header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = h2.connection.H2Connection(config)
        self.connection = Connection(server)
        self.transport = Memory(self.connection)
        self.answers: defaultdict[int, Answer] = defaultdict(Answer)
        self.events: list[Any] = []
        self._grants = grants
        self.connection.connection_made(self.transport)
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes to and fro until both have said all."""
        while (ours := self.h2.data_to_send()) or self.transport.out:
            if ours:
                self.connection.data_received(ours)
            for event in self.h2.receive_data(self.transport.taken()):
                self._note(event)

    def _note(self, event: Any) -> None:
        self.events.append(event)
        match event:
            case h2.events.ResponseReceived():
                self.answers[event.stream_id].headers = dict(event.headers)
            case h2.events.TrailersReceived():
                self.answers[event.stream_id].trailers = dict(event.headers)
            case h2.events.DataReceived():
                self.answers[event.stream_id].data += event.data
                if self._grants:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.answers[event.stream_id].ended = True
            case h2.events.StreamReset():
                self.answers[event.stream_id].reset = int(event.error_code)

    def call(self, body: bytes | None, path: str = "Unary", more: Any = (), **replaced: str) -> int:
        """Send a whole request; `body` None: headers alone."""
        stream = self.h2.get_next_available_stream_id()
        headers = [(name, replaced.get(name.strip(":").replace("-", "_"), value)) for name, value in HEADERS]
        headers = [
            (name, f"/test.Echo/{path}" if name == ":path" else value) for name, value in headers if value
        ]
        self.h2.send_headers(stream, [*headers, *more])
        if body is not None:
            self.h2.send_data(stream, body, end_stream=True)
        self.exchange()
        return stream

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let the server's tasks run until the condition holds."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await asyncio.sleep(0)
                self.exchange()

    async def answer(self, stream: int) -> Answer:
        """Return the answer once it is complete."""
        answer = self.answers[stream]
        await self.until(lambda: answer.ended or answer.reset is not None)
        return answer

    @property
    def gone(self) -> int | None:
        """The code that the server ended the connection with."""
        codes = [int(e.error_code) for e in self.events if isinstance(e, h2.events.ConnectionTerminated)]
        return codes[-1] if codes else None


def framed(message: bytes, flag: int = 0) -> bytes:
    """Return a message with its prefix."""
    return bytes([flag]) + len(message).to_bytes(4) + message
