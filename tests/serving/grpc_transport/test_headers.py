"""Header blocks: RFC 7541's examples, what is remembered of them, and what makes a request."""

from __future__ import annotations

from urllib.parse import unquote

import hpack
import pytest

from serving.grpc_transport import headers
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.headers import HeadReader, head_of

CALL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc+proto"),
]

# RFC 7541, appendix C.3 and C.4: three requests on one connection, without and with Huffman coding.
PLAIN = [
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
]
HUFFMAN = [
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
]
FIRST = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":path", b"/"),
    (b":authority", b"www.example.com"),
]
EXAMPLES = [
    FIRST,
    [*FIRST, (b"cache-control", b"no-cache")],
    [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ],
]


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_the_rfcs_examples_are_read(blocks: list[str]) -> None:
    reader = HeadReader()
    assert [reader.fields(bytes.fromhex(block)) for block in blocks] == EXAMPLES


BASE = b"".join(headers.literal(name, value) for name, value in CALL)
LATEST = b"\xbe"
"""The newest entry of the table."""


def new_entry(name: bytes, value: bytes) -> bytes:
    return b"\x40" + headers.literal(name, value)[1:]


def test_a_remembered_block_is_forgotten_when_the_table_changes() -> None:
    """The same bytes mean another header once the table has moved on."""
    reader = HeadReader()
    reader.read(BASE + new_entry(b"x", b"1"))
    again = BASE + LATEST
    assert reader.read(again).metadata == (("x", "1"),)
    assert reader.read(again) is reader.read(again)
    reader.read(BASE + new_entry(b"y", b"2"))
    assert reader.read(again).metadata == (("y", "2"),)


def test_a_remembered_block_is_forgotten_when_the_table_is_resized() -> None:
    reader = HeadReader()
    reader.read(BASE + new_entry(b"x", b"1"))
    reader.read(BASE + LATEST)
    reader.fields(b"\x20\x3f\xe1\x1f")  # To nothing, and back to 4,096 bytes.
    with pytest.raises(ConnectionFault) as caught:
        reader.read(BASE + LATEST)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", ErrorCode.COMPRESSION_ERROR),  # An endless integer.
        (b"\xbe", ErrorCode.COMPRESSION_ERROR),  # No such entry.
        (b"\x00\x05ab", ErrorCode.COMPRESSION_ERROR),  # Cut off.
        (b"\x3f\xe2\x1f", ErrorCode.COMPRESSION_ERROR),  # A table larger than is granted.
        (new_entry(b"a", b"v" * 4000) + LATEST * 20, ErrorCode.ENHANCE_YOUR_CALM),  # A small bomb.
    ],
)
def test_blocks_that_cannot_be_read_end_the_connection(block: bytes, code: ErrorCode) -> None:
    with pytest.raises(ConnectionFault) as caught:
        HeadReader().fields(block)
    assert caught.value.code is code


def test_a_call_is_read() -> None:
    head = head_of(
        [*CALL, (b"grpc-timeout", b"250m"), (b"grpc-encoding", b"gzip"), (b"a-bin", b"AP8"), (b"a", b"b")]
    )
    assert (head.path, head.timeout, head.encoding) == ("/a.B/C", 0.25, "gzip")
    assert head.metadata == (("a-bin", b"\x00\xff"), ("a", "b"))
    assert head.refusal is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("2H", 7200), ("3M", 180), ("4S", 4), ("5m", 5e-3), ("6u", 6e-6), ("7n", 7e-9)]
)
def test_timeouts_have_units(text: str, seconds: float) -> None:
    assert head_of([*CALL, (b"grpc-timeout", text.encode())]).timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        ((b"grpc-timeout", b"123456789S"), 13, "Error parsing 'grpc-timeout' metadata"),
        ((b"grpc-timeout", b"abc"), 13, "Error parsing 'grpc-timeout' metadata"),
        ((b"grpc-encoding", b"zstd"), 12, "Compression 'zstd' is not supported; supported: identity, "),
        ((b"a-bin", b"!!!"), 13, "Error parsing 'a-bin' metadata: illegal base64 encoding"),
    ],
)
def test_calls_that_get_no_further_say_why(more: tuple[bytes, bytes], status: int, text: str) -> None:
    refusal = head_of([*CALL, more]).refusal
    assert refusal is not None
    assert (refusal.status, refusal.text.startswith(text)) == (status, True)


def test_other_content_types_get_http_415() -> None:
    refusal = head_of([*CALL[:-1], (b"content-type", b"text/plain")]).refusal
    assert refusal is not None
    assert refusal.http == 415


@pytest.mark.parametrize(
    "fields",
    [
        CALL[1:],
        [(b":method", b"GET"), *CALL[1:]],
        [*CALL, (b":authority", b"late")],
        [CALL[0], *CALL],
        [(b":new", b"x"), *CALL],
        [*CALL, (b"Upper", b"x")],
        [*CALL, (b"", b"x")],
        [*CALL, (b"connection", b"close")],
        [*CALL, (b"transfer-encoding", b"chunked")],
        [*CALL, (b"te", b"gzip")],
        [*CALL, (b"a", b"x\r\nb: y")],
        [*CALL, (b"content-length", b"-1")],
    ],
)
def test_what_is_no_request_ends_its_stream(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(StreamFault) as caught:
        head_of(fields)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_texts_and_metadata_are_encoded_for_the_wire() -> None:
    assert headers.percent_encoded("100% é\n~") == b"100%25 %C3%A9%0A~"
    block = headers.trailers(5, "a b", (("k", "v"), ("k-bin", b"\x00\xff")))
    decoded = [tuple(field) for field in hpack.Decoder().decode(block, raw=True)]
    assert decoded == [(b"grpc-status", b"5"), (b"grpc-message", b"a b"), (b"k", b"v"), (b"k-bin", b"AP8")]
    long = headers.literal(b"n", b"v" * 300)
    assert [tuple(field) for field in hpack.Decoder().decode(long, raw=True)] == [(b"n", b"v" * 300)]


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "x" + "é" * 5000, "xx" + "é" * 5000])
def test_a_long_status_text_is_cut_where_it_can_be_read(text: str) -> None:
    """Clients drop a status whose headers are too long for them."""
    sent = dict(hpack.Decoder().decode(headers.trailers(3, text)))
    assert sent["grpc-status"] == "3"
    assert 4000 < len(sent["grpc-message"]) <= 4099
    read = unquote(sent["grpc-message"])
    assert text.startswith(read.removesuffix("...").rstrip("\ufffd"))
    assert len(read) > 600
    assert dict(hpack.Decoder().decode(headers.trailers(3, "x" * 4096)))["grpc-message"] == "x" * 4096
