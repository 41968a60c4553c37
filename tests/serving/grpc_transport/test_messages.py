"""Messages within DATA: put together from any pieces, limited by their length, unpacked within bounds."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.grpc_transport.messages import CallFault, MessageReader, inflated, is_one_message
from tests.serving.grpc_transport.support import framed


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=9000)), max_size=6),
    st.lists(st.integers(1, 6000), min_size=1),
)
def test_messages_are_the_same_however_they_are_cut(
    messages: list[tuple[bool, bytes]], sizes: list[int]
) -> None:
    sent = b"".join(framed(data, flag) for flag, data in messages)
    reader, found, at, turn = MessageReader(-1), [], 0, 0
    while at < len(sent):
        size = sizes[turn % len(sizes)]
        found += reader.feed(sent[at : at + size])
        at, turn = at + size, turn + 1
    assert found == messages
    assert reader.between


def test_a_message_over_the_limit_is_refused_by_its_length_alone() -> None:
    reader = MessageReader(1000)
    assert reader.feed(framed(bytes(1000))) == [(False, bytes(1000))]
    with pytest.raises(CallFault) as caught:
        reader.feed(b"\x00" + (1001).to_bytes(4))
    assert (caught.value.status, caught.value.text) == (
        8,
        "SERVER: Received message larger than max (1001 vs. 1000)",
    )


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(CallFault, match="flag 7"):
        MessageReader(-1).feed(framed(b"a", 7))


def test_one_whole_message_is_known() -> None:
    assert is_one_message(framed(b""))
    assert is_one_message(framed(b"abc"))
    for other in (b"", b"\x00", framed(b"abc", 1), framed(b"abc")[:-1], framed(b"a") + framed(b"b")):
        assert not is_one_message(other)


def test_messages_are_unpacked_within_the_limit() -> None:
    text = b"a" * 1000
    assert inflated(gzip.compress(text), "gzip", 1000) == text
    assert inflated(zlib.compress(text), "deflate", 1000) == text
    with pytest.raises(CallFault, match="larger than max") as caught:
        inflated(gzip.compress(bytes(10_000_000)), "gzip", 1000)
    assert caught.value.status == 8
    for data, encoding, message in (
        (b"no", "gzip", "Decompression failed"),
        (gzip.compress(text)[:-9], "gzip", "ends too soon"),
        (b"no", "identity", "Compression bit set but no encoding configured"),
    ):
        with pytest.raises(CallFault, match=message) as caught:
            inflated(data, encoding, 1000)
        assert caught.value.status == 13
