"""HTTP/2 frames (RFC 9113, sections 4 and 6): bytes to frames and back, without a connection's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
(
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION,
) = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6

DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384
LARGEST_FRAME_SIZE = (1 << 24) - 1
LARGEST_WINDOW = LAST_STREAM = (1 << 31) - 1
HEAD_SIZE = 9

HEAD = Struct(">HBBBI")
"""The head of a frame: length (upper 16 of 24 bits, lower 8), type, flags, stream."""
_SETTING = Struct(">HI")

Frame = tuple[int, int, int, bytes, int]
"""Type, flags, stream, payload, and for DATA the bytes that count for flow control."""


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The other side broke a rule in a way that ends the connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


class StreamFault(Exception):
    """The other side broke a rule in a way that ends one stream."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class FrameReader:
    """Cuts what arrives into frames.

    The payload of DATA is handed on as it comes, in several frames for one if need be: only the last has its
    flags. Frames of unknown types are reported without payload. Everything else is collected, so it may not
    be longer than `max_control`.
    """

    def __init__(self, max_frame_size: int, max_control: int) -> None:
        self._max_frame_size, self._max_control = max_frame_size, max_control
        self._held = b""
        self._data: tuple[int, int, int, int] | None = None  # Of a DATA frame: flags, stream, left, padding.
        self._skip = 0
        self.cuts = 0
        """How many frames have been held because a part was missing."""

    @property
    def waits(self) -> bool:
        """Whether the rest of a frame is missing; of a DATA frame, of its head."""
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are there now.

        Raises:
            ConnectionFault: a frame is too long, or its padding is.
        """
        if self._held:
            data, self._held = self._held + data, b""
            new = False
        else:
            new = True
        at, end = 0, len(data)
        while at < end:
            if self._skip:
                taken = min(self._skip, end - at)
                self._skip -= taken
                at += taken
                continue
            if self._data is not None:
                chunk = data[at : at + self._data[2]]
                at += len(chunk)
                yield self._more_data(chunk)
                continue
            body = at + HEAD_SIZE
            if body > end:
                break
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            length = high << 8 | low
            stream &= LAST_STREAM
            if length > self._max_control:
                self._check_length(kind, length)
            if kind == DATA:
                if flags & PADDED:
                    if body == end and length:
                        break
                    self._data = flags, stream, *_unpadded(data[body] if length else 0, length)
                    at, new = body + 1, True
                    if self._data[2] == 0:
                        yield self._more_data(b"")
                    continue
                if body + length > end:
                    self._data = flags, stream, length, -1
                    at, new = body, True
                    continue
                at, new = body + length, True
                yield DATA, flags, stream, data[body:at], length
            elif kind > CONTINUATION:
                at, new, self._skip = body, True, length
                yield kind, flags, stream, b"", 0
            else:
                if body + length > end:
                    break
                at, new = body + length, True
                yield kind, flags, stream, data[body:at], 0
        if at < end:
            self._held = data[at:]
            self.cuts += new

    def _more_data(self, chunk: bytes) -> Frame:
        assert self._data is not None
        flags, stream, left, padding = self._data
        left -= len(chunk)
        if left:
            self._data = flags, stream, left, padding
            return DATA, 0, stream, chunk, len(chunk)
        self._data = None
        self._skip = max(padding, 0)
        return DATA, flags, stream, chunk, len(chunk) + padding + 1

    def _check_length(self, kind: int, length: int) -> None:
        if length > self._max_frame_size:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes; at most {self._max_frame_size} allowed"
            )
        if length > self._max_control and DATA < kind <= CONTINUATION:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"frame of type {kind} and {length} bytes; at most {self._max_control}",
            )


def _unpadded(padding: int, length: int) -> tuple[int, int]:
    """Return how many bytes of data, and of padding, a padded payload has after its first byte."""
    if padding >= length:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{padding} bytes of padding in a frame of {length}")
    return length - 1 - padding, padding


def header_fragment(flags: int, payload: bytes) -> bytes:
    """Return the part of a HEADERS payload that is a header block.

    Raises:
        ConnectionFault: the payload is too short for what the flags say.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, "padded HEADERS frame without length of padding"
            )
        start, end = 1, end - payload[0]
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS frame shorter than its padding or priority")
    return payload[start:end]


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return identifiers and values, checked.

    Raises:
        ConnectionFault: a value that is not allowed.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    settings = list(_SETTING.iter_unpack(payload))
    for name, value in settings:
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if name == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
    return settings


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the head of a frame."""
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return head(len(payload), kind, flags, stream) + payload


def settings_frame(settings: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in settings.items()))


def window_update(stream: int, size: int) -> bytes:
    """Return a frame that grants `size` more bytes; stream 0: on the whole connection."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """Return a frame that ends a stream."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4))


def goaway(last_stream: int, code: ErrorCode, text: str = "") -> bytes:
    """Return a frame that says which streams were taken, and why no more are."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4) + code.to_bytes(4) + text.encode())
