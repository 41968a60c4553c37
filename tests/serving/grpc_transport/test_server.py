"""The server over real sockets, with grpcio as its client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from serving.grpc_transport import Limits, Server, limits_from
from tests.serving.grpc_transport.support import DEADLINE, Echo, echo_server

Code = grpc.StatusCode
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
UNARY = "/test.Echo/Unary"

Check = Callable[[grpc.aio.Channel, Server, Echo], Awaitable[None]]


def serving(check: Check, limits: Limits | None = None) -> None:
    """Run a check against a server on a free port."""

    async def run() -> None:
        server, echo = echo_server(limits)
        bound = socket.create_server(("127.0.0.1", 0))
        await server.listen_on(bound)
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        async with grpc.aio.insecure_channel(address, options=ANY_SIZE) as channel:
            await check(channel, server, echo)
        await server.stop(DEADLINE)
        assert not server.connections

    uvloop.run(run())


async def refused(call: Any) -> tuple[Code, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def test_all_kinds_of_calls() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        async def three() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"x" * number

        assert await channel.unary_unary(UNARY)(b"hi", timeout=DEADLINE) == b"hi"
        parts = channel.unary_stream("/test.Echo/Parts")(b"ab", timeout=DEADLINE)
        assert [part async for part in parts] == [b"", b"ab", b"abab", b"ababab"]
        assert await channel.stream_unary("/test.Echo/Count")(three(), timeout=DEADLINE) == b"[0, 1, 2]"
        both = channel.stream_stream("/test.Echo/Both")(three(), timeout=DEADLINE)
        assert [answer async for answer in both] == [b"!", b"x!", b"xx!"]

    serving(check)


def test_metadata_status_and_texts_travel() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        call = channel.unary_unary(UNARY)
        sent = (("authorization", "Bearer x"), ("some-bin", b"\x00\xff"))
        seen = await call(b"metadata", metadata=sent, timeout=DEADLINE)
        assert all(repr(pair).encode() in seen for pair in sent)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"abort", timeout=DEADLINE)
        assert (caught.value.code(), caught.value.details()) == (Code.NOT_FOUND, "100% é\n")
        assert tuple(caught.value.trailing_metadata()) == (("k", "v"), ("k-bin", b"\x00\xff"))
        assert await refused(channel.unary_unary("/test.Echo/None")(b"")) == (
            Code.UNIMPLEMENTED,
            "Method not found!",
        )

    serving(check)


def test_deadlines_and_cancelled_calls_end_their_handlers() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        call = channel.unary_unary(UNARY)
        assert (await refused(call(b"wait", timeout=0.05)))[0] is Code.DEADLINE_EXCEEDED
        await asyncio.wait_for(echo.cancelled.wait(), DEADLINE)
        echo.begun.clear()
        echo.cancelled.clear()
        waiting = call(b"wait")
        await asyncio.wait_for(echo.begun.wait(), DEADLINE)
        waiting.cancel()
        await asyncio.wait_for(echo.cancelled.wait(), DEADLINE)

    serving(check)


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_read(kind: grpc.Compression) -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        text = b"abc" * 50_000
        assert await channel.unary_unary(UNARY)(text, compression=kind, timeout=DEADLINE) == text

    serving(check)


def test_messages_of_64_megabytes_go_both_ways() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        text = bytes(range(256)) * (1 << 18)
        assert await channel.unary_unary(UNARY)(text, timeout=DEADLINE) == text
        both = channel.stream_stream("/test.Echo/Both")(timeout=DEADLINE)
        await both.write(text)
        assert await both.read() == text + b"!"
        await both.done_writing()
        assert await both.read() is grpc.aio.EOF

    serving(check)


def test_many_calls_on_one_connection_get_their_own_answers() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        call = channel.unary_unary(UNARY)
        texts = [b"%d" % number * (number % 700) for number in range(1500)]
        answers = await asyncio.gather(*(call(text, timeout=DEADLINE) for text in texts))
        assert answers == texts
        assert len(server.connections) == 1

    serving(check)


def test_a_message_over_the_limit_is_refused() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        assert await refused(channel.unary_unary(UNARY)(bytes(10_000_000))) == (
            Code.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (10000000 vs. 1000)",
        )
        assert await channel.unary_unary(UNARY)(bytes(1000)) == bytes(1000)

    serving(check, Limits(max_receive=1000))


def test_no_call_fails_while_servers_stop_and_others_take_over() -> None:
    """Callers go on and on while one server after another stops; each call is answered by one of them."""

    async def run() -> None:
        def listener(port: int = 0) -> socket.socket:
            return socket.create_server(("127.0.0.1", port), reuse_port=True)

        server, _ = echo_server()
        bound = listener()
        port = bound.getsockname()[1]
        await server.listen_on(bound)
        answered, stop = 0, asyncio.Event()

        async def ask() -> None:
            nonlocal answered
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=ANY_SIZE) as channel:
                call = channel.unary_unary(UNARY)
                while not stop.is_set():
                    assert await call(b"x" * 100, wait_for_ready=True, timeout=DEADLINE) == b"x" * 100
                    answered += 1

        asking = [asyncio.create_task(ask()) for _ in range(8)]
        for _ in range(5):
            before = answered
            async with asyncio.timeout(DEADLINE):
                while answered < before + 200:
                    await asyncio.sleep(0)
            successor, _ = echo_server()
            await successor.listen_on(listener(port))
            await server.stop(DEADLINE)
            server = successor
        stop.set()
        await asyncio.gather(*asking)
        await server.stop(DEADLINE)

    uvloop.run(run())


def test_stop_waits_for_calls_and_then_cuts_them_off() -> None:
    async def check(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        call = channel.unary_unary(UNARY)
        first = asyncio.ensure_future(call(b"wait"))
        await asyncio.wait_for(echo.begun.wait(), DEADLINE)
        stopping = asyncio.create_task(server.stop(DEADLINE))
        asyncio.get_running_loop().call_soon(echo.go_on.set)
        assert await first == b"wait"
        await stopping

    serving(check)

    async def check_cut(channel: grpc.aio.Channel, server: Server, echo: Echo) -> None:
        second = asyncio.ensure_future(channel.unary_unary(UNARY)(b"wait"))
        await asyncio.wait_for(echo.begun.wait(), DEADLINE)
        await server.stop(0.01)
        assert await refused(second) == (Code.UNAVAILABLE, "The server is stopping.")
        assert echo.cancelled.is_set()

    serving(check_cut)


def test_stop_does_not_wait_for_who_watches_the_health() -> None:
    async def run() -> None:
        server = Server(Limits())
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        bound = socket.create_server(("127.0.0.1", 0))
        await server.listen_on(bound)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{bound.getsockname()[1]}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="s"))
            await asyncio.wait_for(watch.read(), DEADLINE)
            await asyncio.wait_for(server.stop(100 * DEADLINE), DEADLINE)
            assert await refused(watch.read()) == (Code.UNAVAILABLE, "The server is stopping.")

    uvloop.run(run())


def test_a_unix_socket_is_made_and_removed(tmp_path: Path) -> None:
    async def run() -> None:
        server, _ = echo_server()
        path = tmp_path / "socket"
        await server.listen_at(str(path))
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            assert await channel.unary_unary(UNARY)(b"hi", timeout=DEADLINE) == b"hi"
        await server.stop(DEADLINE)
        assert not path.exists()

    uvloop.run(run())


def test_channel_arguments_are_honoured_or_left_to_grpc_aio() -> None:
    assert limits_from([("grpc.max_receive_message_length", 5), ("grpc.so_reuseport", 1)]) == Limits(5)
    assert limits_from([("grpc.max_concurrent_streams", 7)]) == Limits(max_streams=7)
    for other in (
        ("grpc.max_connection_age_ms", 5),
        ("grpc.max_receive_message_length", "x"),
        ("grpc.max_send_message_length", -2),
        ("grpc.max_concurrent_streams", 0),
    ):
        assert limits_from([other]) is None
