"""Header blocks: those that arrive, read with hpack and remembered, and those of answers, which hardly vary.

The other side sends the same block again and again once its table is filled. So what a block stands for is
remembered as long as no other has changed the table.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
import hpack
from hpack.table import HeaderTable

from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.limits import MAX_HEADER_BYTES

Metadata = Sequence[tuple[str, str | bytes]]
Fields = Iterable[tuple[bytes, bytes]]
T = TypeVar("T")

ENCODINGS = ("identity", "deflate", "gzip")
_REMEMBERED = 64
_LONGEST_REMEMBERED = 4096
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_A_CONNECTION = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_OF_GRPC = {b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"host"}
"""What is no metadata of the caller's."""
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_LONGEST_TEXT = 4096
"""Bytes of a status text, encoded; grpcio's clients refuse headers of 8 KiB in all."""
_HALF_ESCAPE = re.compile(rb"%[0-9A-F]?\Z")
_NOT_IN_VALUES = re.compile(rb"[\x00\r\n]")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call gets no further than its headers. `http`: an HTTP status instead of one of gRPC."""

    status: int = 0
    text: str = ""
    http: int = 200


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a call say. `timeout` is in seconds."""

    path: str
    metadata: Metadata = ()
    timeout: float | None = None
    encoding: str = ENCODINGS[0]
    content_length: int | None = None
    refusal: Refusal | None = None


class _Table(HeaderTable):
    """hpack's table, which counts what is added."""

    added = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry."""
        self.added += 1
        super().add(name, value)

    def state(self) -> tuple[int, int, int]:
        """Return what differs after each change."""
        return self.added, self.maxsize, len(self.dynamic_entries)


class BlockReader(Generic[T]):
    """Reads the header blocks of one connection, in order.

    Args:
        parse: returns what names and values say, or raises StreamFault.
        longest: list of headers that a block may stand for, in bytes.
    """

    def __init__(self, parse: Callable[[Fields], T], longest: int = MAX_HEADER_BYTES) -> None:
        self._parse = parse
        self._decoder = hpack.Decoder(max_header_list_size=longest)
        self._decoder.header_table = self._table = _Table()
        self._known: dict[bytes, T] = {}

    def read(self, block: bytes) -> T:
        """Return what a block says.

        Raises:
            StreamFault: it is not what HTTP/2 allows here.
            ConnectionFault: it cannot be read, so neither can those that follow.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table.state()
        head = self._parse(self.fields(block))
        if before == self._table.state() and len(block) <= _LONGEST_REMEMBERED:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            self._known[block] = head
        return head

    def fields(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return the names and values in a block.

        Raises:
            ConnectionFault: it cannot be read, so neither can those that follow.
        """
        before = self._table.state()
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except (hpack.HPACKError, UnicodeDecodeError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if before != self._table.state():
            self._known.clear()
        return fields  # type: ignore[return-value]  # They are pairs of bytes.


class HeadReader(BlockReader[Head]):
    """Reads the heads of requests."""

    def __init__(self) -> None:
        super().__init__(head_of)


def head_of(fields: Fields) -> Head:
    """Return what the headers of a request say.

    Raises:
        StreamFault: they are not allowed in HTTP/2, or not those of a call.
    """
    special, own = sorted_out(fields, _PSEUDO)
    if any(name == b"te" and value != b"trailers" for name, value in own):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "te is not 'trailers'")
    if special.get(b":method") != b"POST" or b":scheme" not in special or not special.get(b":path"):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a call is a POST with a scheme and a path")
    length = dict(own).get(b"content-length")
    if length is not None and not length.isdigit():
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "content-length is no number")
    path = special[b":path"].decode("latin-1")
    try:
        return _call(path, own, None if length is None else int(length))
    except _Refused as error:
        return Head(path, refusal=error.refusal)


def sorted_out(
    fields: Fields, pseudo: Container[bytes]
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    """Return the pseudo-headers, of those that there may be, and the other headers.

    Raises:
        StreamFault: HTTP/2 does not allow them.
    """
    special: dict[bytes, bytes] = {}
    own: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if _NOT_IN_VALUES.search(value):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "control character in a header")
        if name in pseudo:
            if own or name in special:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"{name!r} twice or too late")
            special[name] = value
            continue
        if not _NAME.fullmatch(name) or name in _OF_A_CONNECTION:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"header {name!r} is not allowed")
        own.append((name, value))
    return special, own


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def _call(path: str, own: list[tuple[bytes, bytes]], content_length: int | None) -> Head:
    by_name = dict(own)
    if not by_name.get(b"content-type", b"").startswith(b"application/grpc"):
        raise _Refused(Refusal(http=415))
    encoding = by_name.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in ENCODINGS:
        text = f"Compression '{encoding}' is not supported; supported: {', '.join(ENCODINGS)}."
        raise _Refused(Refusal(grpc.StatusCode.UNIMPLEMENTED.value[0], text))
    timeout = _timeout(by_name.get(b"grpc-timeout"))
    try:
        metadata = tuple(entry(name, value) for name, value in own if name not in _OF_GRPC)
    except IllegalBase64 as error:
        raise _Refused(Refusal(grpc.StatusCode.INTERNAL.value[0], str(error))) from error
    return Head(path, metadata, timeout, encoding, content_length)


def _timeout(value: bytes | None) -> float | None:
    if value is None:
        return None
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise _Refused(Refusal(grpc.StatusCode.INTERNAL.value[0], "Error parsing 'grpc-timeout' metadata"))
    return int(found[1]) * _SECONDS[found[2]]


class IllegalBase64(ValueError):
    """A binary header is none."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Error parsing '{key}' metadata: illegal base64 encoding")


def entry(name: bytes, value: bytes) -> tuple[str, str | bytes]:
    """Return a header as metadata; what is binary as bytes.

    Raises:
        IllegalBase64: it is binary, and cannot be read.
    """
    key = name.decode("ascii")
    if not key.endswith("-bin"):
        return key, value.decode("latin-1")
    try:
        return key, base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise IllegalBase64(key) from error


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header as a literal that no table remembers."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    return bytes(hpack.hpack.encode_integer(len(text), 7)) + text


_STATUS_200 = b"\x88"
_CONTENT_TYPE = literal(b"content-type", b"application/grpc")
ANSWER = _STATUS_200 + _CONTENT_TYPE + literal(b"grpc-accept-encoding", ",".join(ENCODINGS).encode())
"""The headers before the first message."""
TRAILERS_OK = literal(b"grpc-status", b"0")


def encoded(metadata: Metadata) -> bytes:
    """Return a block with metadata of ours; what is binary as base64 without padding."""
    block = b""
    for key, value in metadata:
        data = value.encode("latin-1", "replace") if isinstance(value, str) else bytes(value)
        if key.endswith("-bin"):
            data = base64.b64encode(data).rstrip(b"=")
        block += literal(key.encode("ascii"), data)
    return block


def trailers(status: int, text: str, metadata: Metadata = ()) -> bytes:
    """Return the block that ends a call."""
    message = literal(b"grpc-message", _cut(percent_encoded(text))) if text else b""
    return literal(b"grpc-status", str(status).encode()) + message + encoded(metadata)


def trailers_only(refusal: Refusal, metadata: Metadata = ()) -> bytes:
    """Return the block that is a whole answer."""
    if refusal.http != 200:
        return literal(b":status", str(refusal.http).encode())
    return ANSWER + trailers(refusal.status, refusal.text, metadata)


def _cut(message: bytes) -> bytes:
    """Return a status text no longer than clients take. They would drop the whole status with it."""
    if len(message) <= _LONGEST_TEXT:
        return message
    return _HALF_ESCAPE.sub(b"", message[:_LONGEST_TEXT]) + b"..."


def percent_encoded(text: str) -> bytes:
    """Return a status text as gRPC sends it: what is not printable ASCII, and %, as %XX."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")
    )
