"""The client and servers that say exactly what a test says, over real sockets."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from serving.grpc_client import Channel
from serving.grpc_transport import frames
from serving.grpc_transport.frames import ErrorCode
from tests.serving.grpc_transport.client_support import (
    OK_HEADERS,
    UNARY,
    Code,
    Peer,
    against,
    failure,
)
from tests.serving.grpc_transport.support import framed

Said = Callable[[Peer, int], bytes]


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream, payload)


def once(said: Said) -> Callable[[Peer], object]:
    """Return a script: to the first call of a connection this is said, and later ones are answered."""

    async def script(peer: Peer) -> None:
        await peer.hello()
        peer.send(said(peer, await peer.request()))
        while True:
            peer.send(peer.answer(await peer.request(), b"later"))

    return script


def test_what_is_sent() -> None:
    """The preface, SETTINGS without push, and a request whose block is the same for every call."""
    blocks: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.hello()
        assert peer.preface == frames.PREFACE
        settings = dict(frames.read_settings((await peer.frame(frames.SETTINGS))[3]))
        assert settings[frames.ENABLE_PUSH] == 0
        assert settings[frames.INITIAL_WINDOW_SIZE] >= 1 << 20
        while True:
            _, flags, stream, block, _ = await peer.frame(frames.HEADERS)
            assert flags == frames.END_HEADERS
            blocks.append(block)
            kind, flags, _, payload, _ = await peer.frame(frames.DATA, frames.HEADERS)
            assert (kind, flags, payload) == (frames.DATA, frames.END_STREAM, framed(b"hi"))
            said = dict(peer.decoded(block))
            assert said.pop(":authority").startswith("127.0.0.1:")
            timeout = said.pop("grpc-timeout", None)
            assert timeout in (None, "10000m")
            assert said == {
                ":method": "POST",
                ":scheme": "http",
                ":path": UNARY,
                "te": "trailers",
                "content-type": "application/grpc",
                "user-agent": "estimator-appliance",
                "grpc-accept-encoding": "identity,deflate,gzip",
            }
            peer.send(peer.answer(stream, b"ho"))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        for timeout in (None, None, 10.0, 9.9997):
            assert await call(b"hi", timeout=timeout) == b"ho"
        assert blocks[0] == blocks[1]
        assert blocks[2] == blocks[3]

    against(script, use)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(lambda peer, n: peer.answer(n, b"ok"), id="plain"),
        pytest.param(
            lambda peer, n: peer.headers(n, [(":status", "103"), ("link", "x")]) + peer.answer(n, b"ok"),
            id="informational",
        ),
        pytest.param(
            lambda peer, n: (
                peer.headers(n)
                + b"".join(data(n, framed(b"ok")[at : at + 1]) for at in range(7))
                + data(n, b"")
                + peer.trailers(n)
            ),
            id="in pieces",
        ),
        pytest.param(
            lambda peer, n: (
                peer.headers(n)
                + data(n, b"\x03" + framed(b"ok") + bytes(3), frames.PADDED)
                + peer.trailers(n)
            ),
            id="padded data",
        ),
        pytest.param(
            lambda peer, n: (
                frames.frame(
                    frames.HEADERS,
                    frames.END_HEADERS | frames.PADDED | frames.WITH_PRIORITY,
                    n,
                    b"\x02" + bytes(5) + peer.block(OK_HEADERS) + bytes(2),
                )
                + data(n, framed(b"ok"))
                + peer.trailers(n)
            ),
            id="padded headers with priority",
        ),
        pytest.param(
            lambda peer, n: (
                continued(n, peer.block(OK_HEADERS), 0)
                + data(n, framed(b"ok"))
                + continued(n, peer.block([("grpc-status", "0"), ("x", "y")]), frames.END_STREAM)
            ),
            id="continuation",
        ),
        pytest.param(
            lambda peer, n: (
                peer.headers(n, [*OK_HEADERS, ("grpc-encoding", "gzip")])
                + data(n, framed(gzip.compress(b"ok"), 1))
                + peer.trailers(n)
            ),
            id="gzip",
        ),
        pytest.param(
            lambda peer, n: (
                frames.frame(99, 0xFF, n, b"of an extension")
                + frames.frame(frames.PRIORITY, 0, n, bytes(5))
                + peer.answer(n, b"ok")
            ),
            id="unknown frame",
        ),
        pytest.param(
            lambda peer, n: (
                frames.settings_frame({frames.HEADER_TABLE_SIZE: 0, 0x99: 7}) + peer.answer(n, b"ok")
            ),
            id="settings",
        ),
        pytest.param(
            lambda peer, n: peer.answer(n, b"ok") + frames.rst_stream(n, ErrorCode.NO_ERROR), id="reset after"
        ),
    ],
)
def test_answers_in_every_form(said: Said) -> None:
    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        assert await call(b"hi") == b"ok"
        assert await call(b"hi") == b"later"

    against(once(said), use)


def continued(stream: int, block: bytes, flags: int) -> bytes:
    """Return a header block in three frames."""
    third = len(block) // 3
    return (
        frames.frame(frames.HEADERS, flags, stream, block[:third])
        + frames.frame(frames.CONTINUATION, 0, stream, block[third : 2 * third])
        + frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, block[2 * third :])
    )


def only(*fields: tuple[str, str]) -> Said:
    return lambda peer, n: peer.headers(n, list(fields), done=True)


def reset(code: int) -> Said:
    return lambda peer, n: frames.frame(frames.RST_STREAM, 0, n, code.to_bytes(4))


def answered(*pieces: bytes, encoding: str = "identity") -> Said:
    return lambda peer, n: (
        peer.headers(n, [*OK_HEADERS, ("grpc-encoding", encoding)])
        + b"".join(data(n, piece) for piece in pieces)
        + peer.trailers(n)
    )


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        pytest.param(
            only(*OK_HEADERS, ("grpc-status", "9"), ("grpc-message", "a%20b%E4%bd%a0%zz%")),
            Code.FAILED_PRECONDITION,
            "a b你%zz%",
            id="trailers only",
        ),
        pytest.param(
            lambda peer, n: peer.headers(n) + peer.trailers(n, 8, ("grpc-message", "full")),
            Code.RESOURCE_EXHAUSTED,
            "full",
            id="trailers",
        ),
        pytest.param(
            lambda peer, n: peer.headers(n) + peer.trailers(n, 3, ("grpc-message", "x" * 100_000)),
            Code.INVALID_ARGUMENT,
            "x" * 100_000,
            id="long text",
        ),
        pytest.param(
            lambda peer, n: peer.headers(n) + data(n, framed(b"a")) + peer.trailers(n, 13),
            Code.INTERNAL,
            "",
            id="message and then an error",
        ),
        pytest.param(only(*OK_HEADERS, ("grpc-status", "0")), Code.INTERNAL, "not complete", id="no message"),
        pytest.param(only(*OK_HEADERS, ("grpc-status", "77")), Code.UNKNOWN, "no code", id="no such code"),
        pytest.param(only(*OK_HEADERS, ("grpc-status", "-1")), Code.UNKNOWN, "no code", id="no number"),
        pytest.param(only(*OK_HEADERS), Code.UNKNOWN, "without a status", id="no status"),
        pytest.param(
            only(*OK_HEADERS, ("grpc-status", "5"), ("k-bin", "?")), Code.INTERNAL, "'k-bin'", id="base64"
        ),
        pytest.param(
            lambda peer, n: peer.headers(n) + data(n, framed(b"a"), frames.END_STREAM),
            Code.UNKNOWN,
            "without a status",
            id="no trailers",
        ),
        *(
            pytest.param(only((":status", str(http))), code, f"HTTP status {http}", id=f"http {http}")
            for http, code in (
                (400, Code.INTERNAL),
                (401, Code.UNAUTHENTICATED),
                (403, Code.PERMISSION_DENIED),
                (404, Code.UNIMPLEMENTED),
                (429, Code.UNAVAILABLE),
                (503, Code.UNAVAILABLE),
                (418, Code.UNKNOWN),
            )
        ),
        pytest.param(
            only((":status", "503"), ("grpc-status", "3")), Code.INVALID_ARGUMENT, "", id="http and status"
        ),
        pytest.param(
            lambda peer, n: peer.headers(n, [(":status", "502")]) + data(n, b"<html>"),
            Code.UNAVAILABLE,
            "HTTP status 502",
            id="http with a body",
        ),
        pytest.param(
            only((":status", "200"), ("content-type", "text/html")), Code.UNKNOWN, "'text/html'", id="html"
        ),
        *(
            pytest.param(reset(number), code, text, id=f"reset {number}")
            for number, code, text in (
                (0, Code.INTERNAL, "NO_ERROR"),
                (1, Code.INTERNAL, "PROTOCOL_ERROR"),
                (2, Code.INTERNAL, "INTERNAL_ERROR"),
                (8, Code.CANCELLED, "CANCEL"),
                (11, Code.RESOURCE_EXHAUSTED, "ENHANCE_YOUR_CALM"),
                (12, Code.PERMISSION_DENIED, "INADEQUATE_SECURITY"),
                (99, Code.INTERNAL, "error 99"),
            )
        ),
        pytest.param(answered(framed(b"a"), framed(b"b")), Code.INTERNAL, "more than one", id="two messages"),
        pytest.param(answered(framed(b"a") * 2), Code.INTERNAL, "more than one", id="two in one frame"),
        pytest.param(answered(framed(b"abc")[:-1]), Code.INTERNAL, "not complete", id="cut short"),
        pytest.param(answered(framed(b"a", 7)), Code.INTERNAL, "message flag 7", id="flag"),
        pytest.param(answered(framed(b"a", 1)), Code.INTERNAL, "no encoding", id="not encoded"),
        pytest.param(answered(framed(b"a", 1), encoding="br"), Code.INTERNAL, "no encoding", id="unknown"),
        pytest.param(
            answered(framed(b"a", 1), encoding="gzip"), Code.INTERNAL, "Decompression", id="no gzip"
        ),
        pytest.param(
            lambda peer, n: data(n, framed(b"a")), Code.INTERNAL, "without headers", id="data first"
        ),
        pytest.param(
            lambda peer, n: peer.trailers(n), Code.INTERNAL, "with an HTTP status", id="trailers first"
        ),
        pytest.param(
            lambda peer, n: peer.headers(n) + peer.headers(n),
            Code.INTERNAL,
            "HTTP status",
            id="headers twice",
        ),
        pytest.param(
            lambda peer, n: peer.headers(n) + peer.headers(n, [("x", "y")]),
            Code.INTERNAL,
            "in its middle",
            id="trailers go on",
        ),
        pytest.param(only((":status", "2x0")), Code.INTERNAL, "breaks a rule", id="status no number"),
        pytest.param(
            only(*OK_HEADERS, ("connection", "close")), Code.INTERNAL, "breaks a rule", id="of HTTP/1"
        ),
        pytest.param(
            lambda peer, n: frames.window_update(n, 0), Code.INTERNAL, "breaks a rule", id="window of 0"
        ),
        pytest.param(
            lambda peer, n: frames.window_update(n, (1 << 31) - 1), Code.INTERNAL, "too large", id="window"
        ),
        pytest.param(
            lambda peer, n: frames.frame(frames.PRIORITY, 0, n, b"1"), Code.INTERNAL, "breaks", id="priority"
        ),
    ],
)
def test_calls_that_fail_alone(said: Said, code: Code, text: str) -> None:
    """The connection goes on, and so does who waits for another call on it."""

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        error = await failure(call(b"hi"))
        assert error.code is code, error
        assert text in error.details
        assert await call(b"hi") == b"later"
        assert len(channel._connections) == 1

    against(once(said), use)


def test_trailing_metadata_arrives() -> None:
    more = [("k", "v"), ("k", "w"), ("k-bin", "AP8"), ("grpc-status-details-bin", "AQ==")]

    async def use(channel: Channel) -> None:
        error = await failure(channel.unary_unary(UNARY)(b"hi"))
        assert error.metadata == (
            ("k", "v"),
            ("k", "w"),
            ("k-bin", b"\x00\xff"),
            ("grpc-status-details-bin", b"\x01"),
        )

    against(once(only(*OK_HEADERS, ("grpc-status", "5"), *more)), use)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorCode.FRAME_SIZE_ERROR, id="http/1"),
        pytest.param(data(2, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of an even stream"),
        pytest.param(data(0, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of stream 0"),
        pytest.param(data(3, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of a later stream"),
        pytest.param(frames.frame(frames.HEADERS, 4, 2, b"\x88"), ErrorCode.PROTOCOL_ERROR, id="even"),
        pytest.param(frames.frame(frames.HEADERS, 4, 3, b"\x88"), ErrorCode.PROTOCOL_ERROR, id="later"),
        pytest.param(
            frames.frame(frames.HEADERS, 4, 1, b"\xff" * 9), ErrorCode.COMPRESSION_ERROR, id="hpack"
        ),
        pytest.param(
            frames.frame(frames.HEADERS, 4, 1, b"\x3f\xe1\xff\x03"), ErrorCode.COMPRESSION_ERROR, id="table"
        ),
        pytest.param(
            frames.frame(frames.HEADERS, 0, 1) + frames.frame(frames.CONTINUATION, 0, 1, bytes(9)) * 80,
            ErrorCode.ENHANCE_YOUR_CALM,
            id="block without end",
        ),
        pytest.param(
            frames.frame(frames.HEADERS, 0, 1) + frames.frame(frames.PING, 0, 0, bytes(8)),
            ErrorCode.PROTOCOL_ERROR,
            id="block interrupted",
        ),
        pytest.param(frames.frame(frames.PUSH_PROMISE, 4, 1), ErrorCode.PROTOCOL_ERROR, id="push"),
        pytest.param(frames.settings_frame({2: 1}), ErrorCode.PROTOCOL_ERROR, id="enables push"),
        pytest.param(frames.settings_frame({4: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR, id="window"),
        pytest.param(frames.settings_frame({5: 1}), ErrorCode.PROTOCOL_ERROR, id="frame size"),
        pytest.param(frames.rst_stream(3, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR, id="reset, idle"),
        pytest.param(frames.window_update(2, 1), ErrorCode.PROTOCOL_ERROR, id="update, even"),
        pytest.param(frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR, id="update of 0"),
        pytest.param(
            frames.window_update(0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR, id="too large a window"
        ),
        pytest.param(frames.frame(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR, id="goaway"),
        pytest.param(frames.frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR, id="ping"),
        pytest.param(
            frames.frame(frames.PING, 0, 0, bytes(8)) * 20_000, ErrorCode.ENHANCE_YOUR_CALM, id="pings"
        ),
        pytest.param(frames.settings_frame({}) * 20_000, ErrorCode.ENHANCE_YOUR_CALM, id="much settings"),
    ],
)
def test_faults_end_the_connection_and_the_next_call_has_another(said: bytes, code: ErrorCode) -> None:
    goodbyes: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.hello()
        number = await peer.request()
        if peer.number:
            peer.send(peer.answer(number, b"ok"))
            return
        peer.send(said)
        goodbyes.append(int.from_bytes((await peer.frame(frames.GOAWAY))[3][4:8]))

    async def use(channel: Channel) -> None:
        call = channel.unary_unary(UNARY)
        error = await failure(call(b"hi"))
        assert error.code is Code.UNAVAILABLE
        assert f"The connection to {channel.target} was lost: the server breaks a rule" in error.details
        assert code.name in error.details
        assert await call(b"hi") == b"ok"

    against(script, use)
    assert goodbyes == [code]
