"""The client over real sockets, with our server and both of grpcio's: one contract for all three."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.grpc_client import CallFailed, Channel, UnaryUnary
from serving.grpc_transport import Limits
from tests.serving.grpc_transport.client_support import (
    UNARY,
    Code,
    channel_to,
    failure,
    grpc_aio,
    grpc_threads,
    happened,
    ours,
    run,
)
from tests.serving.grpc_transport.support import DEADLINE, echo_server

SERVERS = pytest.mark.parametrize("serving", [ours, grpc_aio, grpc_threads])
LARGE = 20_000_000


@SERVERS
def test_calls_are_answered(serving: Any) -> None:
    async def test() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            for message in (b"", b"x", bytes(16_379), bytes(16_380), bytes(70_000)):
                assert await call(message, timeout=DEADLINE) == message
                assert await call(message) == message
            found = await asyncio.gather(*(call(b"%d" % number * 1000) for number in range(500)))
            assert found == [b"%d" % number * 1000 for number in range(500)]
            assert len(channel._connections) == 1

    run(test())


@SERVERS
def test_messages_may_be_large_both_ways(serving: Any) -> None:
    """Several at a time, each larger than every window, with small ones between them."""

    async def test() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            large = [bytes([number]) * LARGE for number in range(3)]
            found = await asyncio.gather(*map(call, large), *(call(b"small") for _ in range(20)))
            assert found[:3] == large
            assert set(found[3:]) == {b"small"}

    run(test())


@SERVERS
def test_status_text_and_metadata_arrive(serving: Any) -> None:
    async def test() -> None:
        async with serving() as (port, _), channel_to(port) as channel:
            error = await failure(channel.unary_unary(UNARY)(b"abort"))
            assert (error.code, error.details) == (Code.NOT_FOUND, "100% é\n")
            assert dict(error.metadata) == {"k": "v", "k-bin": b"\x00\xff"}
            error = await failure(channel.unary_unary(UNARY)(b"fail"))
            assert error.code is Code.UNKNOWN
            assert "no" in error.details
            error = await failure(channel.unary_unary("/test.Echo/None")(b""))
            assert (error.code, error.details) == (Code.UNIMPLEMENTED, "Method not found!")
            assert await channel.unary_unary(UNARY)(b"on") == b"on"

    run(test())


@SERVERS
def test_a_deadline_ends_the_call_on_both_sides(serving: Any) -> None:
    async def test() -> None:
        async with serving() as (port, echo), channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            assert await call(b"warm") == b"warm"
            error = await failure(call(b"wait", timeout=0.05))
            assert (error.code, error.details) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
            await happened(echo.cancelled)
            assert (await failure(call(b"late", timeout=0.0))).code is Code.DEADLINE_EXCEEDED
            assert await call(b"on") == b"on"

    run(test())


@SERVERS
def test_a_cancelled_call_is_cancelled_at_the_server(serving: Any) -> None:
    async def test() -> None:
        async with serving() as (port, echo), channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            task = asyncio.create_task(call(b"wait"))
            await happened(echo.begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await happened(echo.cancelled)
            assert await call(b"on") == b"on"

    run(test())


@SERVERS
def test_closing_ends_calls_and_later_ones_fail(serving: Any) -> None:
    async def test() -> None:
        async with serving() as (port, echo), channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            task = asyncio.create_task(failure(call(b"wait")))
            await happened(echo.begun)
            await channel.close()
            error = await task
            assert (error.code, error.details) == (Code.CANCELLED, "The channel is closed.")
            assert (await failure(call(b"late"))).code is Code.CANCELLED
            await happened(echo.cancelled)

    run(test())


async def answered(call: UnaryUnary, message: bytes) -> bytes:
    """Return the answer of a server that may not be there yet."""
    while True:
        try:
            return await call(message, timeout=DEADLINE)
        except CallFailed as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            await asyncio.sleep(0)


@SERVERS
def test_a_server_that_is_gone_is_missed_at_once_and_found_again_soon(serving: Any) -> None:
    async def test() -> None:
        async with serving() as (port, _):
            pass
        async with channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            for _ in range(3):
                error = await failure(call(b"nobody"))
                assert error.code is Code.UNAVAILABLE
                assert error.details.startswith(f"Cannot connect to 127.0.0.1:{port}: ")
            for _ in range(2):
                async with serving(port):
                    assert await answered(call, b"back") == b"back"

    run(test())


@SERVERS
def test_a_server_that_stops_finishes_what_it_has_begun(serving: Any) -> None:
    async def test() -> None:
        server = serving()
        port, echo = await server.__aenter__()
        async with channel_to(port) as channel:
            kept = asyncio.create_task(channel.unary_unary(UNARY)(b"wait"))
            await happened(echo.begun)
            (connection,) = channel._connections
            stopping = asyncio.create_task(server.__aexit__(None, None, None))
            while connection.takes_calls:
                await asyncio.sleep(0)
            echo.go_on.set()
            assert await kept == b"wait"
            await stopping

    run(test())


def test_no_call_fails_while_a_server_goes_whose_successor_listens_already() -> None:
    """Calls that the first has not looked at are sent to the second. (grpcio's servers cancel some.)"""

    async def test() -> None:
        server, _ = echo_server()
        bound = socket.create_server(("127.0.0.1", 0), reuse_port=True)
        port, answered, stop = bound.getsockname()[1], 0, False
        await server.listen_on(bound)

        async def ask(call: UnaryUnary) -> None:
            nonlocal answered
            while not stop:
                assert await call(b"x", timeout=DEADLINE) == b"x"
                answered += 1

        async def more() -> None:
            before = answered
            while answered < before + 100:
                await asyncio.sleep(0)

        async with channel_to(port) as channel, asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(ask(channel.unary_unary(UNARY)))
            for _ in range(3):
                await more()
                successor, _ = echo_server()
                await successor.listen_on(socket.create_server(("127.0.0.1", port), reuse_port=True))
                await server.stop(DEADLINE)
                server = successor
            await more()
            stop = True
        await server.stop(DEADLINE)

    run(test())


@pytest.mark.parametrize("serving", [ours, grpc_aio])
def test_calls_beyond_what_the_server_lets_be_open_wait(serving: Any) -> None:
    """Cancelled there, one leaves the line; the others come when there is room."""
    options: Any = {"limits": Limits(max_streams=2)} if serving is ours else {"most": 2}

    async def test() -> None:
        async with serving(**options) as (port, echo), channel_to(port) as channel:
            call = channel.unary_unary(UNARY)
            assert await call(b"x") == b"x"
            held = [asyncio.create_task(call(b"wait")) for _ in range(2)]
            await happened(echo.begun)
            others = [asyncio.create_task(call(b"other")) for _ in range(10)]
            error = await failure(call(b"late", timeout=0.02))
            assert error.code is Code.DEADLINE_EXCEEDED
            others[3].cancel()
            (connection,) = channel._connections
            assert len(connection._streams.open) == 2
            echo.go_on.set()
            assert await asyncio.gather(*held) == [b"wait"] * 2
            found = await asyncio.gather(*others, return_exceptions=True)
            assert isinstance(found.pop(3), asyncio.CancelledError)
            assert found == [b"other"] * 9

    run(test())


def test_compressed_answers_are_read() -> None:
    async def test() -> None:
        for kind in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            async with grpc_aio(compression=kind) as (port, _), channel_to(port) as channel:
                message = b"again " * 100_000
                assert await channel.unary_unary(UNARY)(message) == message

    run(test())


def test_a_call_through_a_unix_socket(tmp_path: Path) -> None:
    async def test() -> None:
        server, _ = echo_server()
        await server.listen_at(str(tmp_path / "s"))
        for target in (f"unix:{tmp_path}/s", f"unix://{tmp_path}/s"):
            channel = Channel(target)
            assert await channel.unary_unary(UNARY)(b"hi") == b"hi"
            await channel.close()
        await server.stop(DEADLINE)

    run(test())


def test_a_host_that_has_no_address_is_named() -> None:
    async def test() -> None:
        channel = Channel("nobody.invalid:1")
        error = await failure(channel.unary_unary(UNARY)(b"hi", timeout=DEADLINE))
        assert error.code is Code.UNAVAILABLE
        assert "Cannot connect to nobody.invalid:1: " in error.details
        await channel.close()

    run(test())
