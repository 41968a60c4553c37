"""How the client's connections begin, change and end, against servers that say what a test says."""

from __future__ import annotations

import asyncio
import socket

import pytest

from serving.grpc_client import Channel, channel, patience
from serving.grpc_transport import frames
from serving.grpc_transport.frames import ErrorCode
from tests.serving.grpc_transport.client_support import (
    UNARY,
    Code,
    Peer,
    against,
    channel_to,
    failure,
    run,
)
from tests.serving.grpc_transport.support import framed


async def answer_all(peer: Peer) -> None:
    while True:
        peer.send(peer.answer(await peer.request(), b"later"))


def goaway(last: int, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
    return frames.goaway(last, code, "maintenance")


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_goaway_finishes_what_was_begun_and_sends_the_rest_again() -> None:
    seen: list[tuple[int, int]] = []

    async def script(peer: Peer) -> None:
        await peer.hello()
        if peer.number:
            seen.extend([(peer.number, await peer.request()) for _ in range(2)])
            peer.send(peer.answer(seen[-2][1], b"a"), peer.answer(seen[-1][1], b"a"))
            await answer_all(peer)
        first = [await peer.request() for _ in range(3)]
        seen.extend((0, number) for number in first)
        peer.send(goaway(frames.LAST_STREAM), goaway(1), peer.answer(1, b"first"))
        with pytest.raises(EOFError):
            await peer.frame()
        raise EOFError

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        found = await asyncio.gather(*(call(b"x") for _ in range(3)))
        assert found == [b"first", b"a", b"a"]
        assert seen == [(0, 1), (0, 3), (0, 5), (1, 1), (1, 3)]
        assert await call(b"x") == b"later"
        assert len(channel._connections) == 1

    against(script, use)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(lambda number: frames.rst_stream(number, ErrorCode.REFUSED_STREAM), id="refused"),
        pytest.param(lambda number: goaway(number - 1), id="goaway"),
    ],
)
def test_a_call_that_was_not_looked_at_is_sent_once_more(refusal) -> None:
    count = 0

    async def script(peer: Peer) -> None:
        nonlocal count
        await peer.hello()
        while True:
            number = await peer.request()
            count += 1
            if count in (2, 4, 5):
                peer.send(refusal(number))
            else:
                peer.send(peer.answer(number, b"%d" % count))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        assert await call(b"x") == b"1"
        assert await call(b"x") == b"3"
        error = await failure(call(b"x"))
        assert error.code is Code.UNAVAILABLE
        assert "refuses" in error.details or "maintenance" in error.details
        assert await call(b"x") == b"6"

    against(script, use)


def test_who_is_refused_for_want_of_room_waits_until_another_call_has_ended() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello({frames.MAX_CONCURRENT_STREAMS: 2})
        assert [await peer.request() for _ in range(2)] == [1, 3]
        peer.send(frames.rst_stream(3, ErrorCode.REFUSED_STREAM), frames.frame(frames.PING, 0, 0, bytes(8)))
        assert (await peer.frame(frames.PING, frames.HEADERS))[0] == frames.PING, "both others wait"
        peer.send(peer.answer(1, b"1"))
        assert [await peer.request() for _ in range(2)] == [5, 7]
        peer.send(frames.rst_stream(7, ErrorCode.REFUSED_STREAM), peer.answer(5, b"5"))
        peer.send(peer.answer(await peer.request(), b"9"))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        assert sorted(await asyncio.gather(*(call(b"x") for _ in range(3)))) == [b"1", b"5", b"9"]

    against(script, use)


def test_goaway_with_a_reason_is_told_to_calls_that_it_ends() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        number = await peer.request()
        peer.send(goaway(number, ErrorCode.ENHANCE_YOUR_CALM))
        peer.hang_up()

    async def use(channel: Channel) -> None:
        error = await failure(channel.unary_unary(UNARY)(b"x"))
        assert error.code is Code.UNAVAILABLE
        assert "the server is leaving (ENHANCE_YOUR_CALM: maintenance)" in error.details

    against(script, use)


def test_a_call_that_was_sent_fails_with_its_connection_and_is_not_sent_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        await peer.request()
        if not peer.number:
            peer.hang_up()
        else:
            peer.send(peer.answer(1, b"ok"))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        error = await failure(call(b"x"))
        assert error.code is Code.UNAVAILABLE
        assert error.details == f"The connection to {channel.target} was lost: the server has closed it."
        assert await call(b"x") == b"ok"

    against(script, use)


def test_a_server_that_always_leaves_is_not_asked_for_ever() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello({frames.MAX_CONCURRENT_STREAMS: 0})
        peer.send(goaway(0))
        await peer.frame()

    async def use(channel: Channel) -> None:
        error = await failure(channel.unary_unary(UNARY)(b"x"))
        assert error.code is Code.UNAVAILABLE
        assert f"The connection to {channel.target} was lost" in error.details

    against(script, use)


def test_the_number_of_open_calls_follows_the_servers_settings() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello({frames.MAX_CONCURRENT_STREAMS: 1})
        assert await peer.request() == 1
        peer.send(frames.frame(frames.PING, 0, 0, b"anything"))
        assert (await peer.frame(frames.PING, frames.HEADERS))[:2] == (frames.PING, frames.ACK)
        peer.send(frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: 3}))
        assert [await peer.request() for _ in range(2)] == [3, 5]
        peer.send(frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: 1}))
        peer.send(peer.answer(1, b"1"), peer.answer(5, b"5"), frames.frame(frames.PING, 0, 0, bytes(8)))
        assert (await peer.frame(frames.PING, frames.HEADERS))[:2] == (frames.PING, frames.ACK)
        peer.send(peer.answer(3, b"3"))
        peer.send(peer.answer(await peer.request(), b"7"))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        assert await asyncio.gather(*(call(b"x") for _ in range(4))) == [b"1", b"3", b"5", b"7"]

    against(script, use)


def test_messages_keep_to_the_servers_windows_and_frame_size() -> None:
    """The window of a stream shrinks below zero, and then grows; that of the connection has its own limit."""
    message = bytes(range(256)) * 1000

    async def sent(peer: Peer, size: int) -> bytes:
        """Return what comes, which has to be so much."""
        found = b""
        while len(found) < size:
            _, flags, _, payload, _ = await peer.frame(frames.DATA)
            assert not flags & frames.END_STREAM
            found += payload
        assert len(found) == size
        return found

    async def script(peer: Peer) -> None:
        await peer.hello({frames.INITIAL_WINDOW_SIZE: 1000})
        found = await sent(peer, 1000)
        peer.send(frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 200}))  # 800 below zero.
        peer.send(frames.window_update(1, 900))
        found += await sent(peer, 100)
        peer.send(frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 100_000, frames.MAX_FRAME_SIZE: 20_000}))
        found += await sent(peer, 65_535 - 1_100)
        peer.send(frames.window_update(0, 1 << 20))
        found += await sent(peer, 100_900 - 65_535)
        peer.send(frames.window_update(1, 1 << 20))
        while True:
            _, flags, _, payload, _ = await peer.frame(frames.DATA)
            assert len(payload) <= 20_000
            found += payload
            if flags & frames.END_STREAM:
                break
        assert found == framed(message)
        peer.send(peer.answer(1, b"ok"))

    async def use(channel: Channel) -> None:
        assert await channel.unary_unary(UNARY)(message) == b"ok"

    against(script, use)


def test_an_answer_before_the_end_of_the_request_ends_both() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        await peer.frame(frames.DATA)
        peer.send(peer.headers(1), peer.trailers(1, 8, ("grpc-message", "too much")))
        assert (await peer.frame(frames.RST_STREAM))[2:4] == (1, ErrorCode.CANCEL.to_bytes(4))
        peer.send(frames.window_update(1, 1 << 20), frames.window_update(0, 1 << 20))
        assert await peer.request() == 3
        peer.send(peer.answer(3, b"ok"))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        error = await failure(call(bytes(1_000_000)))
        assert (error.code, error.details) == (Code.RESOURCE_EXHAUSTED, "too much")
        assert await call(b"x") == b"ok"

    against(script, use)


async def opened(channel: Channel):
    """Return the connections once there is one that is ready."""
    await until(lambda: channel._connection is not None)
    return channel._connections


def test_what_comes_after_a_call_was_given_up_harms_nobody() -> None:
    """Its header blocks still count for the table, and its data for the connection's window."""

    async def script(peer: Peer) -> None:
        await peer.hello()
        await peer.request()
        assert (await peer.frame(frames.RST_STREAM))[2:4] == (1, ErrorCode.CANCEL.to_bytes(4))
        await peer.request()
        peer.send(peer.headers(1, [(":status", "200"), ("content-type", "application/grpc"), ("x-new", "1")]))
        for _ in range(20):
            peer.send(frames.frame(frames.DATA, 0, 1, bytes(1 << 20)))
        for _ in range(2):
            assert (await peer.frame(frames.WINDOW_UPDATE))[2] == 0
        peer.send(peer.trailers(1, 3), frames.rst_stream(1, ErrorCode.NO_ERROR), frames.window_update(1, 1))
        new = [(":status", "200"), ("content-type", "application/grpc"), ("x-new", "1")]
        peer.send(peer.headers(3, new), peer.trailers(3, 5, ("x-new", "1")))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        assert (await failure(call(b"x", timeout=0.01))).code is Code.DEADLINE_EXCEEDED
        error = await failure(call(b"x"))
        assert (error.code, error.metadata) == (Code.NOT_FOUND, (("x-new", "1"),))

    against(script, use)


def test_the_last_stream_of_a_connection_is_used_and_then_there_is_another() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        if peer.number:
            await answer_all(peer)
        peer.send(peer.answer(await peer.request(), b"first"))
        found = [await peer.request() for _ in range(2)]
        assert found == [frames.LAST_STREAM - 2, frames.LAST_STREAM]
        for number in found:
            peer.send(peer.answer(number, b"last"))
        await peer.frame(frames.GOAWAY)

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        assert await call(b"x") == b"first"
        (connection,) = channel._connections
        connection._streams.last = frames.LAST_STREAM - 4
        found = await asyncio.gather(*(call(b"x") for _ in range(4)))
        assert found == [b"last", b"last", b"later", b"later"]

    against(script, use)


def test_a_silent_server_is_asked_and_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        await peer.request()
        if peer.number:
            peer.send(peer.answer(1, b"ok"))
            return
        assert (await peer.frame(frames.PING))[1] == 0

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        pending = asyncio.create_task(failure(call(b"x")))
        (connection,) = await opened(channel)
        await until(lambda: connection._streams.open)
        now = asyncio.get_running_loop().time()
        for seconds in (1.0, 22.0, 30.0):
            connection.check(now + seconds)
            assert not pending.done()
        connection.check(now + 43.0)
        error = await pending
        assert error.code is Code.UNAVAILABLE
        assert error.details.endswith("was lost: the server does not answer a PING.")
        assert await call(b"x") == b"ok"

    against(script, use)


def test_a_server_that_answers_pings_may_take_its_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        await peer.request()
        payload = (await peer.frame(frames.PING))[3]
        peer.send(frames.frame(frames.PING, frames.ACK, 0, payload))
        await peer.request()
        peer.send(peer.answer(1, b"slow"), peer.answer(3, b"fast"))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        pending = asyncio.create_task(call(b"x"))
        (connection,) = await opened(channel)
        await until(lambda: connection._streams.open)
        now = asyncio.get_running_loop().time()
        connection.check(now)
        connection.check(now + 21.0)
        await until(lambda: connection._pulse.heard)
        for seconds in range(42, 300):
            connection.check(now + seconds)
        assert await call(b"x") == b"fast"
        assert await pending == b"slow"

    against(script, use)


def test_who_does_not_speak_http2_is_not_connected_to() -> None:
    async def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await peer.frame(99)

    async def use(channel: Channel) -> None:
        error = await failure(channel.unary_unary(UNARY)(b"x"))
        assert error.code is Code.UNAVAILABLE
        assert f"Cannot connect to {channel.target}: the server breaks a rule of HTTP/2" in error.details

    against(script, use)


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listening socket that nobody accepts from is one."""
    monkeypatch.setattr(channel, "CONNECT_SECONDS", 0.05)

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            async with channel_to(port) as ours:
                call = ours.unary_unary(UNARY)
                early = asyncio.create_task(failure(call(b"x", timeout=0.01)))
                gone = asyncio.create_task(call(b"x"))
                error = await failure(call(b"x"))
                assert error.code is Code.UNAVAILABLE
                assert error.details == f"Cannot connect to 127.0.0.1:{port}: no answer within 0.05 s."
                assert (await early).code is Code.DEADLINE_EXCEEDED
                with pytest.raises(type(error)):
                    await gone

    run(test())


def test_calls_may_be_cancelled_and_the_channel_closed_while_it_connects() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with channel_to(silent.getsockname()[1]) as ours:
                call = ours.unary_unary(UNARY)
                tasks = [asyncio.create_task(call(b"x")) for _ in range(2)]
                await until(lambda: len(ours._waiting) == 2)
                tasks[0].cancel()
                with pytest.raises(asyncio.CancelledError):
                    await tasks[0]
                assert len(ours._waiting) == 1
                await ours.close()
                assert (await failure(tasks[1])).code is Code.CANCELLED

    run(test())


def test_calls_fail_at_once_while_an_unreachable_server_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attempts are as many as pauses, however many the calls."""
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 1000.0)

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        async with channel_to(port) as ours:
            call = ours.unary_unary(UNARY)
            first = await failure(call(b"x"))
            with socket.create_server(("127.0.0.1", port)) as silent:
                silent.setblocking(False)
                for _ in range(1000):
                    assert (await failure(call(b"x"))).details == first.details
                with pytest.raises(BlockingIOError):
                    silent.accept()

    run(test())
