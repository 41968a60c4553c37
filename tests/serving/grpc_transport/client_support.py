"""Servers for the client: ours, both of grpcio's, and one that says, byte by byte, what a test says."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import hpack
import pytest
import uvloop

from serving.grpc_client import CallFailed, Channel
from serving.grpc_transport import Limits, frames
from serving.grpc_transport.frames import FrameReader
from tests.serving.grpc_transport.support import DEADLINE, Echo, echo_server, framed

Code = grpc.StatusCode
UNARY = "/test.Echo/Unary"
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
OK_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


class ThreadedEcho:
    """The Echo for a server with threads."""

    def __init__(self) -> None:
        self.begun, self.cancelled, self.go_on = threading.Event(), threading.Event(), threading.Event()

    def unary(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"fail":
            raise ValueError("no")
        if request == b"abort":
            context.set_trailing_metadata((("k", "v"), ("k-bin", b"\x00\xff")))
            context.abort(Code.NOT_FOUND, "100% é\n")
        if request == b"wait":
            context.add_callback(self._ended)
            self.begun.set()
            assert self.go_on.wait(DEADLINE)
        return request

    def _ended(self) -> None:
        self.cancelled.set()
        self.go_on.set()

    def handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            "test.Echo", {"Unary": grpc.unary_unary_rpc_method_handler(self.unary)}
        )


async def happened(event: asyncio.Event | threading.Event) -> None:
    """Wait for an event of either kind."""
    async with asyncio.timeout(DEADLINE):
        if isinstance(event, asyncio.Event):
            await event.wait()
        else:
            assert await asyncio.to_thread(event.wait, DEADLINE)


@asynccontextmanager
async def ours(port: int = 0, limits: Limits | None = None) -> AsyncIterator[tuple[int, Any]]:
    """Run the server of `serving.grpc_transport`; give its port and its service."""
    server, echo = echo_server(limits)
    bound = socket.create_server(("127.0.0.1", port))
    await server.listen_on(bound)
    try:
        yield bound.getsockname()[1], echo
    finally:
        await server.stop(DEADLINE)


@asynccontextmanager
async def grpc_aio(
    port: int = 0, most: int | None = None, compression: grpc.Compression | None = None
) -> AsyncIterator[tuple[int, Any]]:
    """Run grpcio's server for asyncio. `most`: calls that may be open on a connection."""
    options = [*ANY_SIZE, *([("grpc.max_concurrent_streams", most)] if most else [])]
    server, echo = grpc.aio.server(options=options, compression=compression), Echo()
    server.add_generic_rpc_handlers((echo.handlers(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port, echo
    finally:
        await server.stop(DEADLINE)


@asynccontextmanager
async def grpc_threads(port: int = 0) -> AsyncIterator[tuple[int, Any]]:
    """Run grpcio's server with threads."""
    server, echo = grpc.server(ThreadPoolExecutor(4), options=ANY_SIZE), ThreadedEcho()
    server.add_generic_rpc_handlers((echo.handlers(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port, echo
    finally:
        await asyncio.to_thread(server.stop(DEADLINE).wait)


@asynccontextmanager
async def channel_to(port: int) -> AsyncIterator[Channel]:
    """Give a channel, and close it."""
    channel = Channel(f"127.0.0.1:{port}")
    try:
        yield channel
    finally:
        await channel.close()
        assert not channel._connections
        assert not channel._waiting


def run(test: Awaitable[None]) -> None:
    """Run a test in the kind of loop that serves."""

    async def within_time() -> None:
        async with asyncio.timeout(DEADLINE):
            await test

    uvloop.run(within_time())


async def failure(call: Awaitable[bytes]) -> CallFailed:
    """Return how a call fails."""
    with pytest.raises(CallFailed) as caught:
        await call
    return caught.value


class Peer:
    """A server's end of one connection, which says what it is told to, whatever the rules are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader, self._writer = reader, writer
        self.number = number
        """Which connection of the channel this is, from 0."""
        self._frames = FrameReader(1 << 24, 1 << 24)
        self._found: list[frames.Frame] = []
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self.preface = b""

    def send(self, *pieces: bytes) -> None:
        self._writer.write(b"".join(pieces))

    async def hello(self, settings: dict[int, int] | None = None) -> None:
        """Take the preface, and send SETTINGS."""
        self.preface = await self._reader.readexactly(len(frames.PREFACE))
        self.send(frames.settings_frame(settings or {}))

    async def frame(self, *kinds: int) -> frames.Frame:
        """Return the next frame of one of these kinds.

        Raises:
            EOFError: the client has hung up.
        """
        while True:
            while self._found:
                frame = self._found.pop(0)
                if frame[0] in kinds:
                    return frame
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError
            self._found += self._frames.feed(data)

    async def request(self) -> int:
        """Return the stream of the next whole request."""
        while True:
            _, flags, stream, _, _ = await self.frame(frames.DATA)
            if flags & frames.END_STREAM:
                return stream

    def block(self, fields: list[tuple[str, str]]) -> bytes:
        return self._encoder.encode(fields)

    def decoded(self, block: bytes) -> list[tuple[str, str]]:
        return self._decoder.decode(block)

    def headers(
        self, stream: int, fields: list[tuple[str, str]] = OK_HEADERS, *, done: bool = False
    ) -> bytes:
        """Return a frame with a header block."""
        flags = frames.END_HEADERS | (frames.END_STREAM if done else 0)
        return frames.frame(frames.HEADERS, flags, stream, self.block(fields))

    def trailers(self, stream: int, status: int = 0, *more: tuple[str, str]) -> bytes:
        return self.headers(stream, [("grpc-status", str(status)), *more], done=True)

    def answer(self, stream: int, message: bytes) -> bytes:
        """Return the frames of a whole answer."""
        data = frames.frame(frames.DATA, 0, stream, framed(message))
        return self.headers(stream) + data + self.trailers(stream)

    def hang_up(self) -> None:
        self._writer.close()


Script = Callable[[Peer], Awaitable[None]]


def against(script: Script, use: Callable[[Channel], Awaitable[None]]) -> None:
    """Run `use` with a channel to a server that acts out `script` on each connection."""

    async def play(peer: Peer) -> None:
        try:
            await script(peer)
            await peer.frame()
        except (EOFError, ConnectionError):
            return  # The client has hung up.
        finally:
            peer.hang_up()

    async def main() -> None:
        count = 0
        async with asyncio.TaskGroup() as group:

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal count
                group.create_task(play(Peer(reader, writer, count)))
                count += 1

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            try:
                async with channel_to(server.sockets[0].getsockname()[1]) as channel:
                    await use(channel)
            finally:
                server.close()

    run(main())
