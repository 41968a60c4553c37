"""Clients that break the rules: the right error, bounded work and memory, and others are served as before."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.grpc_transport import frames, limits
from serving.grpc_transport.connection import Connection
from serving.grpc_transport.frames import ErrorCode, FrameReader
from tests.serving.grpc_transport.support import DEADLINE, HEADERS, Memory, echo_server, framed

HELLO = frames.PREFACE + frames.settings_frame({})
BLOCK = hpack.Encoder().encode(HEADERS)
OPEN = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, BLOCK)
CALL = OPEN + frames.frame(frames.DATA, frames.END_STREAM, 1, framed(b"hi"))


def said(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return what the server has sent, as frames."""
    return [frame[:4] for frame in FrameReader(1 << 24, 1 << 24).feed(data)]


class Talk:
    """One connection over memory, without a client that keeps to rules."""

    def __init__(self) -> None:
        self.server, self.echo = echo_server()
        self.connection = Connection(self.server)
        self.transport = Memory(self.connection)
        self.connection.connection_made(self.transport)

    def send(self, *pieces: bytes) -> list[tuple[int, int, int, bytes]]:
        for piece in pieces:
            self.connection.data_received(piece)
        return said(self.transport.taken())


def over_memory(check: Callable[[Talk], None]) -> None:
    async def run() -> None:
        talk = Talk()
        check(talk)
        talk.connection.connection_lost(None)

    asyncio.run(run())


def fault(answers: list[tuple[int, int, int, bytes]]) -> ErrorCode | None:
    """Return the code of the GOAWAY among the frames."""
    codes = [
        ErrorCode(int.from_bytes(payload[4:8])) for kind, _, _, payload in answers if kind == frames.GOAWAY
    ]
    return codes[-1] if codes else None


def resets(answers: list[tuple[int, int, int, bytes]]) -> list[tuple[int, ErrorCode]]:
    return [
        (stream, ErrorCode(int.from_bytes(payload)))
        for kind, _, stream, payload in answers
        if kind == frames.RST_STREAM
    ]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR, id="http/1"),
        pytest.param(frames.PREFACE + OPEN, ErrorCode.PROTOCOL_ERROR, id="no settings"),
        pytest.param(
            HELLO + frames.frame(frames.HEADERS, 4, 2, BLOCK), ErrorCode.PROTOCOL_ERROR, id="even stream"
        ),
        pytest.param(
            HELLO + frames.frame(frames.HEADERS, 4, 0, BLOCK), ErrorCode.PROTOCOL_ERROR, id="stream 0"
        ),
        pytest.param(
            HELLO + frames.frame(frames.HEADERS, 4, 5, BLOCK) + frames.frame(frames.HEADERS, 4, 3, BLOCK),
            ErrorCode.PROTOCOL_ERROR,
            id="stream goes back",
        ),
        pytest.param(HELLO + frames.frame(frames.DATA, 0, 1), ErrorCode.PROTOCOL_ERROR, id="data, idle"),
        pytest.param(HELLO + frames.frame(frames.DATA, 0, 0), ErrorCode.PROTOCOL_ERROR, id="data, stream 0"),
        pytest.param(
            HELLO + frames.rst_stream(9, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR, id="rst, idle"
        ),
        pytest.param(HELLO + frames.window_update(9, 1), ErrorCode.PROTOCOL_ERROR, id="update, idle"),
        pytest.param(HELLO + frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR, id="update of 0"),
        pytest.param(
            HELLO + frames.window_update(0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR, id="overflow"
        ),
        pytest.param(
            HELLO + OPEN + frames.window_update(1, 1 << 30) + frames.settings_frame({4: (1 << 31) - 1}),
            ErrorCode.FLOW_CONTROL_ERROR,
            id="overflow by settings",
        ),
        pytest.param(HELLO + frames.frame(frames.PUSH_PROMISE, 4, 1), ErrorCode.PROTOCOL_ERROR, id="push"),
        pytest.param(
            HELLO + frames.frame(frames.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR, id="continuation"
        ),
        pytest.param(
            HELLO + frames.frame(frames.HEADERS, 0, 1, BLOCK) + frames.frame(frames.PING, 0, 0, bytes(8)),
            ErrorCode.PROTOCOL_ERROR,
            id="block interrupted",
        ),
        pytest.param(
            HELLO + frames.frame(frames.HEADERS, 0, 1, BLOCK) + frames.frame(frames.DATA, 0, 1),
            ErrorCode.PROTOCOL_ERROR,
            id="block interrupted by data",
        ),
        pytest.param(HELLO + frames.frame(frames.PING, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR, id="ping"),
        pytest.param(
            HELLO + frames.frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR, id="ping of stream"
        ),
        pytest.param(HELLO + frames.frame(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR, id="settings"),
        pytest.param(
            HELLO + frames.frame(frames.SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR, id="long ack"
        ),
        pytest.param(
            HELLO + frames.frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR, id="goaway"
        ),
        pytest.param(
            HELLO + frames.frame(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR, id="prio"
        ),
        pytest.param(
            HELLO + frames.frame(frames.HEADERS, 4, 1, b"\xff" * 9), ErrorCode.COMPRESSION_ERROR, id="hpack"
        ),
        pytest.param(HELLO + b"\xff" * 20, ErrorCode.FRAME_SIZE_ERROR, id="noise"),
    ],
)
def test_faults_end_the_connection_with_their_code(sent: bytes, code: ErrorCode) -> None:
    def check(talk: Talk) -> None:
        assert fault(talk.send(sent)) is code
        assert talk.transport.ended
        assert talk.send(CALL) == [], "the connection has ended, and goes on"

    over_memory(check)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR, id="update of 0"),
        pytest.param(frames.window_update(1, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR, id="overflow"),
        pytest.param(frames.frame(frames.PRIORITY, 0, 1, b"1"), ErrorCode.FRAME_SIZE_ERROR, id="priority"),
        pytest.param(frames.frame(frames.HEADERS, 4, 1, BLOCK), ErrorCode.PROTOCOL_ERROR, id="trailers open"),
    ],
)
def test_faults_of_one_stream_end_it_alone(sent: bytes, code: ErrorCode) -> None:
    def check(talk: Talk) -> None:
        assert (1, code) in resets(talk.send(HELLO + OPEN + sent))
        assert fault(talk.send(frames.frame(frames.DATA, 1, 1, b"late"))) is None
        again = CALL.replace(b"\x00\x00\x00\x01", b"\x00\x00\x00\x03")
        assert any(payload == framed(b"hi") for *_, payload in talk.send(again))

    over_memory(check)


def test_more_after_the_end_of_a_request_resets_it() -> None:
    def check(talk: Talk) -> None:
        wait = OPEN + frames.frame(frames.DATA, frames.END_STREAM, 1, framed(b"wait"))
        assert resets(talk.send(HELLO + wait + frames.frame(frames.DATA, 0, 1, b"x"))) == [
            (1, ErrorCode.STREAM_CLOSED)
        ]

    over_memory(check)


@pytest.mark.parametrize(
    ("message", "times", "code"),
    [
        pytest.param(b"a", 200_000, ErrorCode.ENHANCE_YOUR_CALM, id="many"),
        pytest.param(bytes(500_000), 10, ErrorCode.FLOW_CONTROL_ERROR, id="large"),
    ],
)
def test_messages_that_no_handler_has_read_do_not_pile_up(
    message: bytes, times: int, code: ErrorCode
) -> None:
    def check(talk: Talk) -> None:
        headers = [(name, "/test.Echo/Both" if name == ":path" else value) for name, value in HEADERS]
        talk.send(HELLO + frames.frame(frames.HEADERS, 4, 1, hpack.Encoder().encode(headers)))
        sent = framed(message) * times
        parts = [sent[at : at + 1_000_000] for at in range(0, len(sent), 1_000_000)]
        assert (1, code) in resets(talk.send(*(frames.frame(frames.DATA, 0, 1, part) for part in parts)))

    over_memory(check)


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(lambda n: frames.frame(frames.PING, 0, 0, bytes(8)), id="ping"),
        pytest.param(lambda n: frames.settings_frame({}), id="settings"),
        pytest.param(lambda n: frames.frame(frames.DATA, 0, 1), id="empty data"),
        pytest.param(lambda n: frames.frame(frames.PRIORITY, 0, 1, bytes(5)), id="priority"),
        pytest.param(lambda n: frames.frame(99, 0, 0, b"unknown"), id="unknown"),
        pytest.param(lambda n: frames.window_update(0, 1), id="window update"),
        pytest.param(
            lambda n: (
                frames.frame(frames.HEADERS, 4, 2 * n + 3, BLOCK)
                + frames.rst_stream(2 * n + 3, ErrorCode.CANCEL)
            ),
            id="rapid reset",
        ),
    ],
)
def test_floods_are_cut_off(flood: Callable[[int], bytes]) -> None:
    def check(talk: Talk) -> None:
        talk.send(HELLO + OPEN)
        for number in range(limits.ALLOWANCE + 10):
            talk.connection.data_received(flood(number))
            if talk.transport.ended:
                break
        assert fault(said(talk.transport.taken())) is ErrorCode.ENHANCE_YOUR_CALM
        assert len(talk.connection._streams.tasks) <= 2 * talk.server.limits.max_streams

    over_memory(check)


def test_a_header_block_without_end_is_cut_off() -> None:
    def check(talk: Talk) -> None:
        answers = talk.send(HELLO + frames.frame(frames.HEADERS, 0, 1, b"\x00\x01a\x01b" * 100))
        sent = 0
        while not talk.transport.ended:
            sent += 1
            assert sent < 100
            answers += talk.send(frames.frame(frames.CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 200))
        assert fault(answers) is ErrorCode.ENHANCE_YOUR_CALM

    over_memory(check)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda n: frames.frame(frames.PING, 0, 0, bytes(8)), id="pings"),
        pytest.param(
            lambda n: frames.frame(frames.HEADERS, 5, 2 * n + 1, BLOCK.replace(b"Echo", b"None")),
            id="unknown",
        ),
        pytest.param(lambda n: frames.frame(frames.HEADERS, 5, 2 * n + 1, BLOCK), id="errors"),
    ],
)
def test_answers_that_nobody_reads_do_not_pile_up(asked: Callable[[int], bytes]) -> None:
    def check(talk: Talk) -> None:
        talk.send(HELLO)
        talk.connection.pause_writing()
        for number in range(20_000):
            talk.connection.data_received(asked(number))
            if talk.transport.ended:
                break
        assert talk.transport.ended
        assert len(talk.transport.out) < 3_000_000

    over_memory(check)


def test_a_connection_of_the_last_moment_is_told_that_the_server_stops() -> None:
    def check(talk: Talk) -> None:
        talk.server.stopping = True
        late = Connection(talk.server)
        transport = Memory(late)
        late.connection_made(transport)
        assert [kind for kind, *_ in said(transport.taken())][-2:] == [frames.GOAWAY, frames.PING]
        late.data_received(HELLO + CALL)
        assert framed(b"hi") in transport.taken(), "what it sends before it knows is answered"
        late.connection_lost(None)

    over_memory(check)


def test_what_comes_after_an_early_answer_is_dropped() -> None:
    """The deadline ends a call, and the rest of its answer waits for the client's window."""

    async def run() -> None:
        talk = Talk()
        headers = [(name, "/test.Echo/Both" if name == ":path" else value) for name, value in HEADERS]
        headers.append(("grpc-timeout", "20m"))
        talk.send(
            HELLO
            + frames.frame(frames.HEADERS, 4, 1, hpack.Encoder().encode(headers))
            + frames.frame(frames.DATA, 0, 1, framed(bytes(100_000)))
        )
        stream = talk.connection._streams.open[1]
        async with asyncio.timeout(DEADLINE):
            while not stream.closed:
                await asyncio.sleep(0)
        for _ in range(20_000):
            talk.connection.data_received(frames.frame(frames.DATA, 0, 1, framed(b"more")))
        assert not stream.inbox
        talk.transport.taken()
        answers = talk.send(frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20))
        assert answers[-2][1] & frames.END_STREAM
        assert resets(answers) == [(1, ErrorCode.NO_ERROR)]
        talk.connection.connection_lost(None)

    asyncio.run(run())


def test_clients_that_keep_the_server_waiting_are_cut_off() -> None:
    """Time is told to the connection, as its server does once a second."""

    def check(talk: Talk) -> None:
        def after(seconds: float) -> list[tuple[int, int, int, bytes]]:
            now = asyncio.get_running_loop().time()
            for second in range(int(seconds) + 1):
                talk.connection.check(now + second)
            return said(talk.transport.taken())

        talk.send(HELLO + OPEN, frames.frame(frames.DATA, 0, 1, framed(bytes(9000))[:5000]))
        assert resets(after(limits.READ_SECONDS)) == []
        assert resets(after(limits.READ_SECONDS + 5000 / limits.BYTES_PER_SECOND + 2)) == [
            (1, ErrorCode.CANCEL)
        ]
        talk.send(b"\x00\x00")  # The beginning of a frame.
        assert fault(after(limits.READ_SECONDS - 1)) is None
        assert fault(after(limits.READ_SECONDS + 2)) is ErrorCode.ENHANCE_YOUR_CALM

    over_memory(check)


def test_a_connection_that_says_nothing_is_closed() -> None:
    def check(talk: Talk) -> None:
        now = asyncio.get_running_loop().time()
        talk.connection.check(now + limits.SILENT_SECONDS - 1)
        assert not talk.transport.ended
        talk.connection.check(now + limits.SILENT_SECONDS + 1)
        assert talk.transport.ended

    over_memory(check)


def test_an_answer_that_its_client_does_not_take_is_given_up() -> None:
    def check(talk: Talk) -> None:
        large = framed(bytes(100_000))
        talk.send(HELLO, OPEN + frames.frame(frames.DATA, frames.END_STREAM, 1, large))
        now = asyncio.get_running_loop().time()
        for second in range(int(limits.SILENT_SECONDS)):
            talk.connection.check(now + second)
        assert list(talk.connection._streams.open) == [1]
        for second in range(int(limits.SILENT_SECONDS), int(limits.SILENT_SECONDS) + 3):
            talk.connection.check(now + second)
        assert resets(said(talk.transport.taken())) == [(1, ErrorCode.CANCEL)]
        assert not talk.connection._streams.open

    over_memory(check)


PIECES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        frames.frame,
        st.integers(0, 11),
        st.sampled_from([0, 1, 4, 5, 8, 9, 13, 32, 37, 44]),
        st.sampled_from([0, 1, 2, 3, 5, 7, 9]),
        st.one_of(st.binary(max_size=30), st.just(BLOCK), st.just(framed(b"hi")), st.just(framed(b"wait"))),
    ),
    st.just(CALL),
    st.builds(lambda n: frames.frame(frames.HEADERS, 4, n, BLOCK), st.sampled_from([1, 3, 5, 7, 9, 11])),
    st.builds(frames.window_update, st.sampled_from([0, 1, 3]), st.sampled_from([0, 1, 1 << 20, 1 << 31])),
    st.builds(
        lambda name, value: frames.settings_frame({name: value}), st.integers(0, 8), st.integers(0, 1 << 17)
    ),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES, max_size=20), st.integers(1, 50))
def test_no_bytes_are_worse_than_the_end_of_their_connection(pieces: list[bytes], size: int) -> None:
    """Whatever comes, no exception escapes, nothing is left behind, and what is said is made of frames."""

    async def run() -> None:
        talk = Talk()
        sent = HELLO + b"".join(pieces)
        for at in range(0, len(sent), size):
            talk.send(sent[at : at + size])
            await asyncio.sleep(0)
        talk.connection.check(asyncio.get_running_loop().time())
        talk.connection.connection_lost(None)
        async with asyncio.timeout(DEADLINE):
            while talk.connection._streams.tasks:
                await asyncio.sleep(0)
        assert not talk.connection._streams.open
        assert not talk.server.connections

    asyncio.run(run())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    import uvloop

    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


def test_others_are_served_while_clients_send_noise(loop: asyncio.AbstractEventLoop) -> None:
    """Over real sockets: some send noise and vanish, one asks and is answered each time."""

    async def run() -> None:
        server, _ = echo_server()
        bound = socket.create_server(("127.0.0.1", 0))
        await server.listen_on(bound)
        address = bound.getsockname()
        for number in range(20):
            for start in (b"", frames.PREFACE, HELLO, HELLO + OPEN, HELLO + CALL[:-1]):
                _, writer = await asyncio.open_connection(*address)
                writer.write(start + os.urandom(number * 10))
                writer.transport.abort() if number % 2 else writer.close()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HELLO + CALL)
            async with asyncio.timeout(DEADLINE):
                await reader.readuntil(framed(b"hi"))
            writer.close()
        await server.stop(DEADLINE)
        assert not server.connections

    loop.run_until_complete(run())
