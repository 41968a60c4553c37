"""Messages within a stream's DATA: five bytes of flag and length, then so many bytes (gRPC over HTTP/2)."""

from __future__ import annotations

import zlib
from struct import Struct

import grpc

PREFIX = Struct(">BI")
PREFIX_SIZE = 5
_WBITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_SMALL = 4096


class CallFault(Exception):
    """A call ends with a status that the handler did not choose."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(status, text)
        self.status: int = status.value[0]
        self.text = text


Message = tuple[bool, bytes]
"""Whether it is compressed, and its bytes."""


class MessageReader:
    """Puts the messages of one stream together. `limit`: the longest that is taken, in bytes; -1: any."""

    __slots__ = ("_compressed", "_left", "_limit", "_parts", "_prefix")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._prefix = b""
        self._left = -1  # Negative: the prefix is not complete.
        self._compressed = False
        self._parts: list[bytes | bytearray] = []

    @property
    def between(self) -> bool:
        """Whether no message has begun that is not complete."""
        return self._left < 0 and not self._prefix

    def feed(self, data: bytes) -> list[Message]:
        """Take what arrived; return the messages that are complete now.

        Raises:
            CallFault: a message is too long, or its flag is none that there is.
        """
        found: list[Message] = []
        at = 0
        while at < len(data):
            if self._left < 0:
                piece = data[at : at + PREFIX_SIZE - len(self._prefix)]
                at += len(piece)
                self._prefix += piece
                if len(self._prefix) < PREFIX_SIZE:
                    break
                self._begin()
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._keep(piece)
            if not self._left:
                found.append((self._compressed, b"".join(self._parts)))
                self._left, self._parts = -1, []
        return found

    def _begin(self) -> None:
        flag, self._left = PREFIX.unpack(self._prefix)
        self._prefix = b""
        self._compressed = flag == 1
        check_length(self._left, self._limit)
        if flag > 1:
            raise CallFault(grpc.StatusCode.INTERNAL, f"Invalid message flag {flag}")

    def _keep(self, piece: bytes) -> None:
        # Many small pieces would take many times the memory of their bytes.
        if len(piece) >= _SMALL:
            self._parts.append(piece)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += piece
        else:
            self._parts.append(bytearray(piece))


def is_one_message(data: bytes) -> bool:
    """Whether this is exactly one message, not compressed."""
    return len(data) >= PREFIX_SIZE and data[0] == 0 and int.from_bytes(data[1:5]) == len(data) - PREFIX_SIZE


def check_length(length: int, limit: int) -> None:
    """Refuse a message that is too long, with gRPC's text.

    Raises:
        CallFault: it is.
    """
    if 0 <= limit < length:
        text = f"SERVER: Received message larger than max ({length} vs. {limit})"
        raise CallFault(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def check_sent(length: int, limit: int) -> None:
    """Refuse an answer that is too long, with gRPC's text.

    Raises:
        CallFault: it is.
    """
    if 0 <= limit < length:
        text = f"SERVER: Sent message larger than max ({length} vs. {limit})"
        raise CallFault(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def inflated(data: bytes, encoding: str, limit: int) -> bytes:
    """Return a message without its compression. `limit`: the longest it may become, in bytes.

    Raises:
        CallFault: there is no encoding, it is not kept to, or the message becomes too long.
    """
    if encoding not in _WBITS:
        raise CallFault(grpc.StatusCode.INTERNAL, "Compression bit set but no encoding configured")
    unpacker = zlib.decompressobj(_WBITS[encoding])
    try:
        message = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise CallFault(grpc.StatusCode.INTERNAL, f"Decompression failed: {error}") from error
    if len(message) > limit:
        raise CallFault(
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"Decompressed message larger than max ({limit} bytes)"
        )
    if not unpacker.eof:
        raise CallFault(grpc.StatusCode.INTERNAL, "Decompression failed: the data ends too soon")
    return message


def framed(message: bytes) -> bytes:
    """Return a message with its prefix, not compressed."""
    return PREFIX.pack(0, len(message)) + message
