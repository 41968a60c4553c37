"""The client's pure parts, and its connection over memory: cut anywhere, or told anything."""

from __future__ import annotations

import asyncio

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.grpc_client import CallFailed, Channel, patience
from serving.grpc_client.connection import Connection
from serving.grpc_client.patience import Backoff, Finding, Pulse
from serving.grpc_client.requests import request_block, timeout_header
from serving.grpc_client.targets import Target
from serving.grpc_transport import frames
from serving.grpc_transport.connection import Connection as ServerConnection
from serving.grpc_transport.headers import head_of
from tests.serving.grpc_transport.client_support import OK_HEADERS, UNARY, Code, run
from tests.serving.grpc_transport.support import Memory, echo_server, framed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1e-9, "1m"),
        (0.0199, "20m"),
        (0.5, "500m"),
        (1.0001, "1010m"),
        (9.9996, "10000m"),
        (59.99, "60000m"),
        (3600.0, "3600000m"),
        (99_999.0, "100000S"),
        (1e12, "99999999S"),
        (float("inf"), "99999999S"),
    ],
)
def test_timeouts_are_rounded_up_to_three_digits(seconds: float, text: str) -> None:
    assert dict(hpack.Decoder().decode(timeout_header(seconds)))["grpc-timeout"] == text


@given(st.floats(1e-6, 1e7))
def test_a_timeout_is_never_shorter_and_hardly_longer(seconds: float) -> None:
    block = request_block("a:1", "/s/m") + timeout_header(seconds)
    read = head_of(hpack.Decoder().decode(block, raw=True)).timeout
    assert read is not None
    assert min(seconds, 99_999_999.0) <= read * (1 + 1e-9)
    assert read <= max(1.011 * seconds, seconds + 0.0011)


def test_a_block_changes_no_table_and_is_read_by_our_server() -> None:
    decoder = hpack.Decoder()
    fields = decoder.decode(request_block("host:1", "/a/B"), raw=True)
    head = head_of(fields)
    assert (head.path, head.refusal, head.encoding) == ("/a/B", None, "identity")
    assert dict(fields)[b":authority"] == b"host:1"
    assert len(decoder.header_table.dynamic_entries) == 0


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("127.0.0.1:8500", "127.0.0.1:8500"),
        ("[::1]:8500", "[::1]:8500"),
        ("dns:///tensorflow-serving:8500", "tensorflow-serving:8500"),
        ("dns:host:1", "host:1"),
        ("unix:/run/s", "localhost"),
    ],
)
def test_targets(text: str, authority: str) -> None:
    assert Target(text).authority == authority


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":1", "host:x", "host:70000", "http://host:1", "a@host:1", "host:1/x", "::1"],
)
def test_what_is_no_target_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"Cannot call gRPC at .*; give an address like 127\.0\.0\.1:8500"):
        Target(text)


def test_pauses_grow_up_to_a_second_and_begin_anew_after_success() -> None:
    backoff, now, pauses = Backoff(), 1000.0, []
    assert backoff.over(now)
    for _ in range(12):
        backoff.failed("why", now)
        assert not backoff.over(now + 0.079)
        pause = next(step / 1000 for step in range(2000) if backoff.over(now + step / 1000))
        pauses.append(pause)
    assert 0.08 <= pauses[0] <= 0.121
    assert all(0.8 <= pause <= 1.201 for pause in pauses[6:])
    assert backoff.failure == "why"
    backoff.succeeded()
    assert backoff.over(now)


def test_who_answers_a_ping_is_asked_again_only_later_unless_it_has_begun_answers() -> None:
    pulse, asked = Pulse(), []
    for second in range(1000):
        if asked and second == asked[-1] + 1:
            pulse.heard = True
        finding = pulse.look(float(second), busy=True, answers=int(second >= 700))
        assert finding is not Finding.GONE
        if finding is Finding.ASK:
            asked.append(second)
    assert asked == [20, 330, 640, 700]


def test_nobody_is_asked_without_need() -> None:
    pulse = Pulse()
    for second in range(1000):
        assert pulse.look(float(second), busy=False, answers=0) is Finding.NOTHING
    for second in range(1000, 1019):
        assert pulse.look(float(second), busy=True, answers=0) is Finding.NOTHING, "idle time is no silence"
    assert patience.SILENT_SECONDS == 20.0


class OverMemory:
    """A channel whose connection ends at a transport that keeps what is written."""

    def __init__(self) -> None:
        self.channel = Channel("127.0.0.1:1")
        self.connection = Connection(self.channel)
        self.transport = Memory(self.connection)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)
        self.channel._connection = self.connection
        self.call = self.channel.unary_unary(UNARY)


SIZES = st.lists(st.sampled_from([0, 1, 100, 16_379, 16_380, 70_000, 300_000]), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(SIZES, st.lists(st.integers(1, 100_000), min_size=1, max_size=8), st.sampled_from([None, 1, 2]))
def test_calls_of_any_size_cut_anywhere_are_answered(
    sizes: list[int], cuts: list[int], most: int | None
) -> None:
    """What each side writes reaches the other in pieces, now short, now long."""

    async def test() -> None:
        ours = OverMemory()
        server, _ = echo_server()
        theirs = ServerConnection(server)
        there = Memory(theirs)
        theirs.connection_made(there)
        if most is not None:
            there.out[:0] = frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: most})
        tasks = [asyncio.create_task(ours.call(bytes([size % 251]) * size)) for size in sizes]
        turn = 0
        while not all(task.done() for task in tasks):
            for transport, sink in ((ours.transport, theirs), (there, ours.connection)):
                data = transport.taken()
                while data:
                    cut = cuts[turn % len(cuts)] if turn < 500 else len(data)
                    turn += 1
                    sink.data_received(data[:cut])
                    data = data[cut:]
            await asyncio.sleep(0)
        assert [task.result() for task in tasks] == [bytes([size % 251]) * size for size in sizes]
        assert not ours.connection._streams.open
        theirs.connection_lost(None)
        ours.connection.connection_lost(None)

    run(test())


ENCODED = hpack.Encoder().encode([*OK_HEADERS, ("x", "y")])
TRAILERS = hpack.Encoder().encode([("grpc-status", "0")])
PIECES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        frames.frame,
        st.integers(0, 12),
        st.integers(0, 255),
        st.integers(0, 6),
        st.one_of(st.binary(max_size=20), st.sampled_from([ENCODED, TRAILERS, framed(b"x"), bytes(8)])),
    ),
    st.builds(
        lambda stream: (
            frames.frame(frames.HEADERS, 4, stream, ENCODED)
            + frames.frame(frames.DATA, 0, stream, framed(b"x"))
            + frames.frame(frames.HEADERS, 5, stream, TRAILERS)
        ),
        st.sampled_from([1, 3, 5]),
    ),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES, max_size=12))
def test_whatever_a_server_says_every_call_ends(pieces: list[bytes]) -> None:
    async def test() -> None:
        ours = OverMemory()
        tasks = [asyncio.create_task(ours.call(b"x")) for _ in range(3)]
        await asyncio.sleep(0)
        ours.connection.data_received(frames.settings_frame({}))
        for piece in pieces:
            ours.connection.data_received(piece)
        await ours.channel.close()
        ours.connection.connection_lost(None)
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert found == b"x" or (isinstance(found, CallFailed) and found.code is not Code.OK), found
        assert not ours.connection._streams.open
        assert not ours.connection._streams._queue

    run(test())
