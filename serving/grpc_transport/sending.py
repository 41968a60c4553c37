"""What goes to the other side: in one piece if its windows have room, otherwise by and by."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from struct import Struct
from typing import Generic, Protocol, TypeVar

from serving.grpc_transport import frames, headers
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.messages import PREFIX_SIZE, framed

_AT_ONCE = 1 << 20
"""Longest message that is given to the transport without looking whether the other side takes it."""
_TURN = 1 << 18
"""Bytes that one stream may send before others have their turn."""
_MOST_OWED = 10_000
"""Frames that no window holds up, and that the other side may leave unread in the transport."""
_JOINED = 1 << 16
"""Messages up to this length are copied into one piece with their frames."""

# A whole answer but for its message: HEADERS, the head of DATA, the message's prefix; and then the trailers.
_BEFORE = Struct(f"{frames.HEAD.format}{len(headers.ANSWER)}s{frames.HEAD.format[1:]}BI")
_AFTER = Struct(f"{frames.HEAD.format}{len(headers.TRAILERS_OK)}s")
_END = frames.END_HEADERS | frames.END_STREAM

# A whole request between its block and its message: the head of DATA, the prefix of the message.
_PREFIXED = Struct(f"{frames.HEAD.format}BI")


class Outgoing(Protocol):
    """A stream as far as it sends."""

    id: int
    out_window: int
    """Bytes that may be sent; the other side may make it negative."""
    sent: int
    """Bytes of DATA that were sent."""
    headers_sent: bool
    outbox: deque[memoryview] | None
    """What waits for windows."""
    ends_with: bytes | None
    """The last frame, once it is known that nothing follows."""

    def wake_writer(self) -> None:
        """Say that the outbox is empty."""


S = TypeVar("S", bound=Outgoing)


class Sender(Generic[S]):
    """The sending side of a connection.

    Streams with something to send, and room to, stand in a line and take turns. A stream without room is not
    in it; the other side's WINDOW_UPDATE puts it there.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._window = self._initial_window = frames.DEFAULT_WINDOW
        self._max_frame_size = frames.DEFAULT_FRAME_SIZE
        self._line: dict[int, S] = {}
        self._paused = False
        self._owed = 0

    @property
    def initial_window(self) -> int:
        """What a new stream may send."""
        return self._initial_window

    def control(self, data: bytes) -> None:
        """Send frames that no window holds up. Who has us send them and reads none is cut off."""
        if self._paused:
            self._owed += 1
            if self._owed > _MOST_OWED:
                self._transport.abort()
                return
        self._transport.write(data)

    def answer(self, stream: S, message: bytes) -> bool:
        """Send a whole answer of one message, status OK; return whether all of it is on its way."""
        size = len(message) + PREFIX_SIZE
        if stream.headers_sent or not self._has_room(stream, size):
            self.message(stream, message)
            return self.end(stream, headers.TRAILERS_OK)
        self._window -= size
        number = stream.id
        before = _BEFORE.pack(
            *(0, len(headers.ANSWER), frames.HEADERS, frames.END_HEADERS, number, headers.ANSWER),
            *(size >> 8, size & 0xFF, frames.DATA, 0, number, 0, size - PREFIX_SIZE),
        )
        after = _AFTER.pack(0, len(headers.TRAILERS_OK), frames.HEADERS, _END, number, headers.TRAILERS_OK)
        if size <= _JOINED:
            self._transport.write(b"".join((before, message, after)))
        else:
            self._transport.writelines((before, message, after))
        return True

    def request(self, stream: S, block: bytes, message: bytes) -> bool:
        """Send a whole request of one message; return whether all of it is on its way."""
        size = len(message) + PREFIX_SIZE
        stream.headers_sent = True
        head = frames.head(len(block), frames.HEADERS, frames.END_HEADERS, stream.id)
        if not self._has_room(stream, size):
            self.control(head + block)
            stream.ends_with = frames.frame(frames.DATA, frames.END_STREAM, stream.id)
            self.message(stream, message)
            return False
        self._window -= size
        stream.out_window -= size
        prefixed = _PREFIXED.pack(
            size >> 8, size & 0xFF, frames.DATA, frames.END_STREAM, stream.id, 0, size - PREFIX_SIZE
        )
        if size <= _JOINED:
            self._transport.write(b"".join((head, block, prefixed, message)))
        else:
            self._transport.writelines((head, block, prefixed, message))
        return True

    def _has_room(self, stream: S, size: int) -> bool:
        """Whether a message goes in one frame, now."""
        return not (
            self._paused
            or size > stream.out_window
            or size > self._window
            or size > self._max_frame_size
            or size > _AT_ONCE
        )

    def headers(self, stream: S, metadata: headers.Metadata = ()) -> None:
        """Send the headers of an answer, if they have not been."""
        if not stream.headers_sent:
            stream.headers_sent = True
            block = headers.ANSWER + headers.encoded(metadata)
            self.control(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, block))

    def message(self, stream: S, message: bytes) -> None:
        """Send a message as soon as there is room."""
        self.headers(stream)
        if stream.outbox is None:
            stream.outbox = deque()
        stream.outbox.append(memoryview(framed(message)))
        self._stand_in_line(stream)

    def end(self, stream: S, block: bytes) -> bool:
        """Send trailers after all messages; return whether all is on its way."""
        stream.ends_with = frames.frame(frames.HEADERS, _END, stream.id, block)
        if stream.outbox:
            return False
        self._end(stream)
        return True

    def only_trailers(self, stream: int, block: bytes) -> None:
        """Send an answer that is no more than its end."""
        self.control(frames.frame(frames.HEADERS, _END, stream, block))

    def forget(self, stream: S) -> None:
        """Send nothing more of a stream."""
        self._line.pop(stream.id, None)
        stream.outbox = None

    def grant(self, size: int) -> None:
        """Take a WINDOW_UPDATE of the connection.

        Raises:
            ConnectionFault: the window becomes too large.
        """
        self._window += size
        if self._window > frames.LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window of the connection too large")

    def grant_stream(self, stream: S, size: int) -> None:
        """Take a WINDOW_UPDATE of a stream.

        Raises:
            StreamFault: the window becomes too large.
        """
        stream.out_window += size
        if stream.out_window > frames.LARGEST_WINDOW:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "window of the stream too large")
        self._stand_in_line(stream)

    def settings(self, settings: list[tuple[int, int]], streams: Iterable[S]) -> None:
        """Take the other side's SETTINGS, which change the windows of all streams there are.

        Raises:
            ConnectionFault: a window becomes too large.
        """
        for name, value in settings:
            if name == frames.MAX_FRAME_SIZE:
                self._max_frame_size = value
            elif name == frames.INITIAL_WINDOW_SIZE:
                change, self._initial_window = value - self._initial_window, value
                for stream in streams:
                    stream.out_window += change
                    if stream.out_window > frames.LARGEST_WINDOW:
                        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window of a stream too large")
                    self._stand_in_line(stream)

    def pause(self) -> None:
        """Keep to ourselves what the transport would only store."""
        self._paused = True

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._owed = 0

    def pump(self) -> list[S]:
        """Send what there is room for; return the streams that have come to their end."""
        ended = []
        while self._line and self._window > 0 and not self._paused:
            number = next(iter(self._line))
            stream = self._line.pop(number)
            self._send_some(stream)
            if not stream.outbox:
                stream.wake_writer()
                if stream.ends_with is not None:
                    self._end(stream)
                    ended.append(stream)
            else:
                self._stand_in_line(stream)
        return ended

    def _stand_in_line(self, stream: S) -> None:
        if stream.outbox and stream.out_window > 0:
            self._line[stream.id] = stream

    def _send_some(self, stream: S) -> None:
        outbox = stream.outbox
        assert outbox
        room = min(self._window, stream.out_window, _TURN)
        pieces: list[bytes | memoryview] = []
        while outbox and room > 0:
            size = min(len(outbox[0]), room, self._max_frame_size)
            pieces += frames.head(size, frames.DATA, 0, stream.id), outbox[0][:size]
            if size == len(outbox[0]):
                outbox.popleft()
            else:
                outbox[0] = outbox[0][size:]
            room -= size
            self._window -= size
            stream.out_window -= size
            stream.sent += size
        self._transport.writelines(pieces)

    def _end(self, stream: S) -> None:
        assert stream.ends_with is not None
        self.control(stream.ends_with)
