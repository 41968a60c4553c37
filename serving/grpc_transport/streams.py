"""The calls on one connection: how each begins, gets its messages, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from serving.grpc_transport import calls, frames, headers
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.headers import Head, Metadata, Refusal
from serving.grpc_transport.limits import MAX_UNREAD, STREAM_WINDOW, Limits
from serving.grpc_transport.messages import (
    PREFIX_SIZE,
    CallFault,
    Message,
    MessageReader,
    check_length,
    is_one_message,
)
from serving.grpc_transport.patience import Allowance
from serving.grpc_transport.sending import Sender
from serving.grpc_transport.stream import Stream

_HERE = 16
"""Calls handled where they arrive, of what comes at once, before other connections have their turn."""
_REMEMBERED = 1000
"""Streams ended by us of which more may come."""
_INTERNAL = grpc.StatusCode.INTERNAL.value[0]


class Methods(Protocol):
    """What can be called, and within what limits."""

    limits: Limits

    def handler(self, head: Head) -> Any:
        """Return the handler of a call, or a Refusal."""


class Streams:
    """The streams of a connection. `when_empty` is called whenever the last one has ended."""

    def __init__(
        self,
        methods: Methods,
        sender: Sender[Stream],
        allowance: Allowance,
        peer: str,
        when_empty: Callable[[], None],
    ) -> None:
        self._methods, self._sender, self._allowance = methods, sender, allowance
        self._when_empty = when_empty
        self.limits, self.peer = methods.limits, peer
        self.open: dict[int, Stream] = {}
        self.last = 0
        """The latest that the client has begun."""
        self.refusing = False
        """Whether no more are taken."""
        self.tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._ended: dict[int, None] = {}  # Streams that we ended, and the client perhaps not.
        self._here = _HERE
        self._timed: list[Stream] = []  # Streams with a deadline and no timer yet.

    # What comes from the client.

    def known(self, number: int) -> bool:
        """Whether a stream is open, or was until we ended it."""
        return number in self.open or number in self._ended

    def begin(self, number: int, head: Head, done: bool) -> None:
        """Open a stream. `done`: its client sends no more."""
        most = self.limits.max_streams
        # A handler may outlive its stream: of a client that resets what it begins they must not pile up.
        if self.refusing or len(self.open) >= most or len(self.tasks) >= 2 * most:
            self.reset(number, ErrorCode.REFUSED_STREAM)
            return
        self._allowance.grow()
        handler = head.refusal or self._methods.handler(head)
        if isinstance(handler, Refusal):
            self._sender.only_trailers(number, headers.trailers_only(handler))
            if not done:
                self.reset(number, ErrorCode.NO_ERROR)
            return
        stream = Stream(number, head, handler, self._sender.initial_window, self._loop.time())
        self.open[number] = stream
        if stream.deadline is not None:
            self._timed.append(stream)
        if stream.takes_many:
            self._start(stream, None)
        if done:
            self._end_of_requests(stream)

    def take_data(self, number: int, payload: bytes, size: int, done: bool) -> None:
        """Take a part of a stream's messages. `size`: its bytes with padding; `done`: it was the last."""
        stream = self.open.get(number)
        if stream is None:
            self._take_stray(number)
            return
        if stream.remote_done:
            self._end_stream(stream, ErrorCode.STREAM_CLOSED)
            return
        stream.received += len(payload)
        stream.in_window -= size
        if stream.in_window < 0:
            self._end_stream(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if stream.closed:
            stream.remote_done = done  # It has been answered without the rest, and waits for room to say so.
        elif not payload and not done:
            self._allowance.charge(1)
        elif done and is_one_message(payload) and stream.takes_one_whole:
            try:
                check_length(len(payload) - PREFIX_SIZE, self.limits.max_receive)
            except CallFault as fault:
                self.finish(stream, fault.status, fault.text, ())
                return
            stream.inbox.append((False, payload[PREFIX_SIZE:]))
            self._end_of_requests(stream)
        else:
            self._take_pieces(stream, payload, done)

    def _take_pieces(self, stream: Stream, payload: bytes, done: bool) -> None:
        """Take DATA that is not just one message."""
        if stream.reader is None:
            stream.reader = MessageReader(self.limits.max_receive)
        try:
            stream.inbox.extend(stream.reader.feed(payload))
            if len(stream.inbox) > 1 and not stream.takes_many:
                raise CallFault(grpc.StatusCode.INTERNAL, "More than one message for a method that takes one")
        except CallFault as fault:
            self.finish(stream, fault.status, fault.text, ())
            return
        if len(stream.inbox) > MAX_UNREAD:
            self._end_stream(stream, ErrorCode.ENHANCE_YOUR_CALM)
            return
        stream.wake_reader()
        if done:
            self._end_of_requests(stream)
        else:
            self._grant(stream)

    def _end_of_requests(self, stream: Stream) -> None:
        """Note that all has come from the client; begin what waited for that."""
        stream.remote_done = True
        expected = stream.head.content_length
        if expected is not None and expected != stream.received:
            self._end_stream(stream, ErrorCode.PROTOCOL_ERROR)
        elif stream.reader is not None and not stream.reader.between:
            self.finish(stream, _INTERNAL, "The last message is not complete", ())
        elif stream.takes_many:
            stream.wake_reader()
        elif stream.inbox:
            self._start(stream, stream.inbox.popleft())
        else:
            self.finish(stream, _INTERNAL, "No message for a method that takes one", ())

    def _start(self, stream: Stream, message: Message | None) -> None:
        if stream.deadline is not None and self._loop.time() >= stream.deadline:
            self._expire(stream)
            return
        self._here -= 1
        calls.start(self, stream, message, self._here >= 0)
        if stream.task is not None:
            self.tasks.add(stream.task)
            stream.task.add_done_callback(self.tasks.discard)

    def take_trailers(self, number: int, done: bool) -> None:
        """Take a second header block."""
        stream = self.open.get(number)
        if stream is None:
            return
        if stream.remote_done:
            self._end_stream(stream, ErrorCode.STREAM_CLOSED)
        elif not done:
            self._end_stream(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._end_of_requests(stream)

    def _take_stray(self, number: int) -> None:
        """Take DATA of a stream that is not open."""
        if number == 0 or number > self.last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"DATA for stream {number}, which is not open")
        self._allowance.charge(1)
        if number not in self._ended:
            self.reset(number, ErrorCode.STREAM_CLOSED)

    def take_reset(self, number: int, code: int) -> None:
        """Let a stream end that its client gives up, for whatever reason."""
        # A client that begins and resets calls without end has us begin them for nothing.
        self._allowance.charge(7)
        if stream := self.open.get(number):
            self._give_up(stream)

    def take_window(self, number: int, size: int) -> None:
        """Take a WINDOW_UPDATE."""
        if number == 0:
            self._sender.grant(size)
        elif stream := self.open.get(number):
            try:
                self._sender.grant_stream(stream, size)
            except StreamFault as fault:
                self._end_stream(stream, fault.code)
        self.pump()

    def take_settings(self, settings: list[tuple[int, int]]) -> None:
        """Take the client's SETTINGS."""
        self._sender.settings(settings, self.open.values())
        self.pump()

    def all_taken(self) -> None:
        """Do what waits until everything that came at once is taken."""
        self._here = _HERE
        for stream in self._timed:
            if not stream.closed and stream.deadline is not None:
                stream.timer = self._loop.call_at(stream.deadline, self._expire, stream)
        self._timed.clear()

    # What calls want of their connection: see `calls.Way`.

    def next_message(self, stream: Stream) -> Message | None:
        """Return the next message from the client, if it is here."""
        if not stream.inbox:
            return None
        message = stream.inbox.popleft()
        if not stream.closed and not stream.remote_done:
            self._grant(stream)
        return message

    def send_headers(self, stream: Stream, metadata: Metadata) -> None:
        """Send headers now."""
        if not stream.closed:
            self._sender.headers(stream, metadata)

    def send_message(self, stream: Stream, message: bytes) -> asyncio.Future[None] | None:
        """Send a message; return what to wait for, if there is no room for it yet."""
        if stream.closed:
            return None
        self._sender.message(stream, message)
        self.pump()
        if not stream.outbox:
            return None
        stream.written = self._loop.create_future()
        return stream.written

    def answer(self, stream: Stream, message: bytes) -> None:
        """Send the only message, and end the call with OK."""
        if not stream.closed:
            stream.closed = True
            if self._sender.answer(stream, message):
                self._finished(stream)
            else:
                self.pump()

    def finish(self, stream: Stream, status: int, text: str, metadata: Metadata) -> None:
        """End the call."""
        if stream.closed:
            return
        stream.closed = True
        if not stream.headers_sent:
            self._sender.only_trailers(stream.id, headers.trailers_only(Refusal(status, text), metadata))
            self._finished(stream)
        elif self._sender.end(stream, headers.trailers(status, text, metadata)):
            self._finished(stream)

    # How streams end.

    def pump(self) -> None:
        """Send what there is room for."""
        for stream in self._sender.pump():
            self._finished(stream)

    def _finished(self, stream: Stream) -> None:
        """Forget a stream whose answer is sent."""
        self._forget(stream)
        if not stream.remote_done:
            self.reset(stream.id, ErrorCode.NO_ERROR)
        if not self.open:
            self._when_empty()

    def _end_stream(self, stream: Stream, code: ErrorCode) -> None:
        self.reset(stream.id, code)
        self._give_up(stream)

    def end(self, number: int, code: ErrorCode) -> None:
        """Reset a stream, whether it is open or not."""
        self.reset(number, code)
        if stream := self.open.get(number):
            self._give_up(stream)

    def end_all(self, status: int, text: str, path: str = "") -> None:
        """End all calls, and their handlers; with `path` those of one method."""
        for stream in [one for one in self.open.values() if not path or one.head.path == path]:
            self.finish(stream, status, text, ())
            self._give_up(stream)

    def give_up_all(self) -> None:
        """End all calls without an answer."""
        for stream in list(self.open.values()):
            self._give_up(stream)

    def _give_up(self, stream: Stream) -> None:
        """Forget a stream without an answer, and end its handler."""
        stream.closed = True
        self._forget(stream)
        self._sender.forget(stream)
        if stream.task is not None:
            stream.task.cancel()
        if not self.open:
            self._when_empty()

    def _forget(self, stream: Stream) -> None:
        self.open.pop(stream.id, None)
        if stream.timer is not None:
            stream.timer.cancel()

    def reset(self, number: int, code: ErrorCode) -> None:
        """Tell the client that a stream has ended, and remember it: more of it may be under way."""
        self._sender.control(frames.rst_stream(number, code))
        self._ended[number] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _grant(self, stream: Stream) -> None:
        """Let more of a request come, unless its handler is behind."""
        if stream.in_window < STREAM_WINDOW // 2 and len(stream.inbox) <= 1:
            self._sender.control(frames.window_update(stream.id, STREAM_WINDOW - stream.in_window))
            stream.in_window = STREAM_WINDOW

    def _expire(self, stream: Stream) -> None:
        if stream.closed:
            self._end_stream(stream, ErrorCode.CANCEL)  # The answer was there; the client does not take it.
            return
        self.finish(stream, grpc.StatusCode.DEADLINE_EXCEEDED.value[0], "Deadline Exceeded", ())
        if stream.task is not None:
            stream.task.cancel()
