"""What both ends of a connection do with what arrives: cut it into frames, hold these against the rules of
HTTP/2 (RFC 9113), and hand them on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Protocol, cast

from serving.grpc_transport import frames
from serving.grpc_transport.frames import ConnectionFault, ErrorCode
from serving.grpc_transport.limits import CONNECTION_WINDOW, MAX_FRAME_SIZE, MAX_HEADER_BYTES
from serving.grpc_transport.patience import Allowance
from serving.grpc_transport.sending import Sender

_MOST_FRAGMENTS = 64
"""Frames that one header block may come in."""
_WRITE_BUFFER = 1 << 20
"""Bytes that the transport may hold for an other side that is slow to read."""


class LinkStreams(Protocol):
    """The streams of a connection, as far as both ends have them."""

    last: int
    """The latest stream that the client has begun."""

    def take_data(self, number: int, payload: bytes, size: int, done: bool) -> None:
        """Take a part of a stream's messages. `size`: its bytes with padding; `done`: it was the last."""

    def take_reset(self, number: int, code: int) -> None:
        """Let a stream end that the other side gives up."""

    def take_window(self, number: int, size: int) -> None:
        """Take a WINDOW_UPDATE."""

    def take_settings(self, settings: list[tuple[int, int]]) -> None:
        """Take the other side's SETTINGS."""

    def end(self, number: int, code: ErrorCode) -> None:
        """Reset a stream, whether it is open or not."""

    def pump(self) -> None:
        """Send what there is room for."""

    def all_taken(self) -> None:
        """Do what waits until everything that came at once is taken."""


class Link(asyncio.Protocol, ABC):
    """Takes bytes from the other side, cuts them into frames, and acts on those that mean the same to both.

    Args:
        longest_block: header block that is taken, in bytes.
    """

    _streams: LinkStreams

    def __init__(self, longest_block: int = MAX_HEADER_BYTES) -> None:
        self._transport: asyncio.Transport
        self._sender: Sender[Any]
        self._longest_block = longest_block
        self._frames = frames.FrameReader(MAX_FRAME_SIZE, longest_block)
        self._allowance = Allowance()
        self._in_window = CONNECTION_WINDOW
        self._settled = False  # The other side's first SETTINGS have come.
        self._block: tuple[int, int, list[bytes]] | None = None  # A header block that is not complete.
        self._paused_since: float | None = None
        self._over_since: float | None = None  # All is said; what still comes is not read.

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Get ready to send."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses of it
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._sender = Sender(self._transport)

    def pause_writing(self) -> None:
        """Keep messages until the other side has read some."""
        self._paused_since = asyncio.get_running_loop().time()
        self._sender.pause()

    def resume_writing(self) -> None:
        """Go on."""
        self._paused_since = None
        self._sender.resume()
        self._streams.pump()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._over_since is not None:
            return
        try:
            for frame in self._frames.feed(data):
                self._take(*frame)
                if self._over_since is not None:
                    return
        except ConnectionFault as fault:
            self._fail(fault)
            return
        self._streams.all_taken()

    # What each end does in its own way.

    @abstractmethod
    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        """Take a whole header block."""

    @abstractmethod
    def _fail(self, fault: ConnectionFault) -> None:
        """End the connection: the other side has broken a rule."""

    def _begun(self, number: int) -> bool:
        """Whether a stream has ever been open."""
        return 0 < number <= self._streams.last

    def _answered(self, payload: bytes) -> None:
        """Take the answer to a PING."""

    def _leaves(self, last: int, code: int, text: bytes) -> None:
        """Take a GOAWAY: streams after `last` were not looked at."""

    # What comes from the other side.

    def _take(self, kind: int, flags: int, number: int, payload: bytes, size: int) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == frames.DATA:
            self._in_window -= size
            if self._in_window < CONNECTION_WINDOW // 2:
                self._sender.control(frames.window_update(0, CONNECTION_WINDOW - self._in_window))
                self._in_window = CONNECTION_WINDOW
            self._streams.take_data(number, payload, size, bool(flags & frames.END_STREAM))
        elif kind == frames.HEADERS:
            fragment = frames.header_fragment(flags, payload)
            if flags & frames.END_HEADERS:
                self._take_block(number, flags, fragment)
            else:
                self._block = number, flags, [fragment]
        else:
            self._allowance.charge(1)
            if kind <= frames.CONTINUATION:
                self._OTHERS[kind](self, flags, number, payload)

    def _take_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, parts = self._block
        parts.append(payload)
        if len(parts) > _MOST_FRAGMENTS or sum(map(len, parts)) > self._longest_block:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._take_block(number, first_flags, b"".join(parts))

    def _take_priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY for stream 0")
        if len(payload) != 5:
            self._streams.end(number, ErrorCode.FRAME_SIZE_ERROR)

    def _take_reset(self, flags: int, number: int, payload: bytes) -> None:
        self._check_begun("RST_STREAM", number)
        _check_size("RST_STREAM", payload, 4)
        self._streams.take_reset(number, int.from_bytes(payload))

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        _check_connection_frame("SETTINGS", number)
        self._settled = True
        if flags & frames.ACK:
            _check_size("acknowledgement of SETTINGS", payload, 0)
            return
        settings = frames.read_settings(payload)
        self._sender.control(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._streams.take_settings(settings)

    def _take_push(self, flags: int, number: int, payload: bytes) -> None:
        # No client may push, and as a client we do not let a server.
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is not allowed")

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        _check_connection_frame("PING", number)
        _check_size("PING", payload, 8)
        if flags & frames.ACK:
            self._answered(payload)
        else:
            self._sender.control(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _take_goaway(self, flags: int, number: int, payload: bytes) -> None:
        _check_connection_frame("GOAWAY", number)
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self._leaves(
            int.from_bytes(payload[:4]) & frames.LAST_STREAM, int.from_bytes(payload[4:8]), payload[8:]
        )

    def _take_window_update(self, flags: int, number: int, payload: bytes) -> None:
        _check_size("WINDOW_UPDATE", payload, 4)
        size = int.from_bytes(payload) & frames.LARGEST_WINDOW
        if number:
            self._check_begun("WINDOW_UPDATE", number)
        if size:
            self._streams.take_window(number, size)
        elif number:
            self._streams.end(number, ErrorCode.PROTOCOL_ERROR)
        else:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")

    def _check_begun(self, name: str, number: int) -> None:
        if not self._begun(number):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"{name} for stream {number}, which was never opened"
            )

    _OTHERS = {
        frames.PRIORITY: _take_priority,
        frames.RST_STREAM: _take_reset,
        frames.SETTINGS: _take_settings,
        frames.PUSH_PROMISE: _take_push,
        frames.PING: _take_ping,
        frames.GOAWAY: _take_goaway,
        frames.WINDOW_UPDATE: _take_window_update,
        frames.CONTINUATION: _take_continuation,
    }


def _check_connection_frame(name: str, number: int) -> None:
    if number:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} for stream {number}")


def _check_size(name: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes")
