"""Frames: however the bytes are cut, the same comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.grpc_transport import frames
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, FrameReader


def read(pieces: list[bytes]) -> list[tuple[int, int, int, bytes, int]]:
    """Return the frames, those of one DATA frame joined."""
    reader, found = FrameReader(1 << 20, 1 << 15), []
    joined: dict[int, tuple[bytes, int]] = {}
    for piece in pieces:
        for kind, flags, stream, payload, size in reader.feed(piece):
            if kind == frames.DATA:
                before, counted = joined.get(stream, (b"", 0))
                joined[stream] = before + payload, counted + size
                if flags & frames.END_STREAM:
                    found.append((kind, flags, stream, *joined.pop(stream)))
            else:
                found.append((kind, flags, stream, payload, size))
    assert not reader.waits
    return found


def padded(payload: bytes, padding: int) -> bytes:
    return bytes([padding]) + payload + bytes(padding)


FRAMES = [
    (frames.frame(frames.DATA, 1, 1, b"abc"), (frames.DATA, 1, 1, b"abc", 3)),
    (frames.frame(frames.DATA, 1, 3), (frames.DATA, 1, 3, b"", 0)),
    (frames.frame(frames.DATA, 9, 5, padded(b"abcd", 7)), (frames.DATA, 9, 5, b"abcd", 12)),
    (frames.frame(frames.DATA, 9, 5, padded(b"", 2)), (frames.DATA, 9, 5, b"", 3)),
    (frames.frame(frames.HEADERS, 4, 7, b"xy"), (frames.HEADERS, 4, 7, b"xy", 0)),
    (frames.frame(frames.PING, 0, 0, b"12345678"), (frames.PING, 0, 0, b"12345678", 0)),
    (frames.frame(200, 0, 1, b"unknown"), (200, 0, 1, b"", 0)),
]


@given(st.lists(st.sampled_from(FRAMES), max_size=8), st.data())
def test_frames_are_the_same_however_the_bytes_are_cut(chosen: list, data: st.DataObject) -> None:
    stream = b"".join(sent for sent, _ in chosen)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(pieces) == [expected for _, expected in chosen]


def test_a_large_data_frame_is_handed_on_as_it_comes() -> None:
    reader = FrameReader(1 << 20, 1 << 15)
    sent = frames.frame(frames.DATA, frames.END_STREAM, 1, b"a" * 1000)
    first = list(reader.feed(sent[:500]))
    assert first == [(frames.DATA, 0, 1, b"a" * 491, 491)]
    assert list(reader.feed(sent[500:])) == [(frames.DATA, 1, 1, b"a" * 509, 509)]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frames.head((1 << 20) + 1, frames.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
        (frames.head((1 << 15) + 1, frames.HEADERS, 0, 1), ErrorCode.ENHANCE_YOUR_CALM),
        (frames.frame(frames.DATA, frames.PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.DATA, frames.PADDED, 1), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_frames_that_cannot_be_are_refused(sent: bytes, code: ErrorCode) -> None:
    with pytest.raises(ConnectionFault) as caught:
        list(FrameReader(1 << 20, 1 << 15).feed(sent))
    assert caught.value.code is code


def test_header_fragments_lose_padding_and_priority() -> None:
    assert frames.header_fragment(frames.PADDED, padded(b"xy", 3)) == b"xy"
    assert frames.header_fragment(frames.WITH_PRIORITY, b"12345xy") == b"xy"
    for flags, payload in ((frames.PADDED, b""), (frames.PADDED, b"\x04ab"), (frames.WITH_PRIORITY, b"123")):
        with pytest.raises(ConnectionFault):
            frames.header_fragment(flags, payload)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x00" * 5, ErrorCode.FRAME_SIZE_ERROR),
        (b"\x00\x02\x00\x00\x00\x02", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x04\x80\x00\x00\x00", ErrorCode.FLOW_CONTROL_ERROR),
        (b"\x00\x05\x00\x00\x00\x01", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x05\x01\x00\x00\x00", ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_range_are_refused(payload: bytes, code: ErrorCode) -> None:
    with pytest.raises(ConnectionFault) as caught:
        frames.read_settings(payload)
    assert caught.value.code is code
    assert frames.read_settings(b"\x00\x04\x00\x00\x00\x07\x00\x99\x00\x00\x00\x01") == [(4, 7), (0x99, 1)]


def test_frames_are_built_as_the_rfc_draws_them() -> None:
    assert frames.frame(frames.DATA, 1, 5, b"hi").hex() == "0000020001000000056869"
    assert frames.window_update(3, 10).hex() == "0000040800000000030000000a"
    assert frames.rst_stream(3, ErrorCode.CANCEL).hex() == "00000403000000000300000008"
    assert frames.goaway(7, ErrorCode.NO_ERROR, "x").hex() == "000009070000000000000000070000000078"
    assert frames.settings_frame({4: 1}).hex() == "000006040000000000000400000001"
