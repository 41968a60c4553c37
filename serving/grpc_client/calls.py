"""The calls on one connection: how each is sent, what comes back, and how it ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from grpc import StatusCode

from serving.grpc_client import outcomes
from serving.grpc_client.outcomes import CallFailed
from serving.grpc_client.replies import Reply
from serving.grpc_transport import frames
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.limits import STREAM_WINDOW
from serving.grpc_transport.messages import PREFIX_SIZE, CallFault, Message, MessageReader, is_one_message
from serving.grpc_transport.patience import Allowance
from serving.grpc_transport.sending import Sender

_UPDATED_BYTES = 4096
"""A server gives back windows by one frame for so many bytes at least."""


class Place(Protocol):
    """Where a call is: on a connection, or waiting for one."""

    def give_up(self, call: Call) -> None:
        """Forget a call that nobody waits for any more."""


class Call:
    """One call: what is asked, and how far the answer has come."""

    __slots__ = (
        "answer",
        "block",
        "ends_with",
        "headers_sent",
        "id",
        "in_window",
        "message",
        "moves",
        "out_window",
        "outbox",
        "outcome",
        "place",
        "reader",
        "refused",
        "reply",
        "said",
        "sent",
    )

    def __init__(self, block: bytes, message: bytes, outcome: asyncio.Future[Message]) -> None:
        self.block, self.message = block, message
        self.outcome = outcome
        self.place: Place | None = None
        self.refused = False  # A server has not looked at it once.
        self.moves = 0  # How often it was taken from a connection without having been sent.
        self.renew()

    def renew(self) -> None:
        """Begin again, on a stream that is to be given."""
        self.id = self.out_window = self.sent = 0
        self.in_window = STREAM_WINDOW
        self.headers_sent = self.said = False  # `said`: all of the request is on its way.
        self.outbox: deque[memoryview] | None = None
        self.ends_with: bytes | None = None
        self.reply: Reply | None = None  # The headers of the answer.
        self.reader: MessageReader | None = None  # Of an answer that comes in pieces.
        self.answer: Message | None = None

    def wake_writer(self) -> None:
        """Nobody waits for a request to be sent."""

    def succeed(self) -> None:
        """Hand over the answer."""
        if not self.outcome.done():
            if self.answer is None or (self.reader is not None and not self.reader.between):
                self.outcome.set_exception(outcomes.internal("The server's answer is not complete."))
            else:
                self.outcome.set_result(self.answer)

    def fail(self, failure: CallFailed) -> None:
        """Hand over why there is no answer."""
        if not self.outcome.done():
            self.outcome.set_exception(failure)


class Calls:
    """The calls of a connection.

    Args:
        sender: the connection's.
        allowance: what the server may send that answers nothing.
        again: is given calls that this connection will not serve, with what to say if no other does.
        when_empty: called when the last call has ended of a connection that takes no more.
    """

    def __init__(
        self,
        sender: Sender[Call],
        allowance: Allowance,
        again: Callable[[Call, str], None],
        when_empty: Callable[[], None],
    ) -> None:
        self._sender, self._allowance = sender, allowance
        self._again, self._when_empty = again, when_empty
        self.open: dict[int, Call] = {}
        self.last = -1
        """The stream of the latest call."""
        self.leaving = False
        """Whether no more are taken."""
        self.answers = 0
        """How many answers have begun."""
        self._most: int | None = None  # What the server lets be open at a time.
        self._queue: dict[Call, None] = {}  # Calls beyond that.
        self._full = False  # It has refused a call; until another ends there is no room for one.

    def begun(self, number: int) -> bool:
        """Whether a stream is, or was, one of ours."""
        return bool(number & 1) and number <= self.last

    # What goes to the server.

    def begin(self, call: Call) -> None:
        """Send a call as soon as the server lets us."""
        call.place = self
        if not self._room():
            self._queue[call] = None
            return
        self.last = call.id = self.last + 2
        self.open[call.id] = call
        self._allowance.grow(4 + len(call.message) // _UPDATED_BYTES)
        call.out_window = self._sender.initial_window
        call.said = self._sender.request(call, call.block, call.message)
        if not call.said:
            self.pump()
        if call.id == frames.LAST_STREAM:
            self.take_goaway(call.id, "No stream is left.")

    def _room(self) -> bool:
        """Whether the server lets another call begin."""
        return not self._full and (self._most is None or len(self.open) < self._most)

    def pump(self) -> None:
        """Send what there is room for."""
        for call in self._sender.pump():
            call.said = True

    def give_up(self, call: Call) -> None:
        """Forget a call that nobody waits for any more, and tell the server."""
        if call in self._queue:
            del self._queue[call]
            call.place = None
        else:
            self._end(call, ErrorCode.CANCEL)

    # What comes from the server.

    def take_reply(self, number: int, reply: Reply, done: bool) -> None:
        """Take a header block. `done`: nothing follows."""
        call = self.open.get(number)
        if call is None:
            self._allowance.charge(1)  # Of a call that was given up.
        elif (call.reply is None) == (reply.http is None):
            self._break(call, "Headers come with an HTTP status, and trailers without; not this answer's.")
        elif done:
            self._finish(call, reply)
        elif call.reply is not None:
            self._break(call, "The server's answer has headers in its middle.")
        elif reply.informational:
            self._allowance.charge(1)
        else:
            self.answers += 1
            call.reply = reply
            if failure := outcomes.after_headers(reply):
                self._end(call, ErrorCode.CANCEL)
                call.fail(failure)

    def take_data(self, number: int, payload: bytes, size: int, done: bool) -> None:
        """Take a part of an answer. `size`: its bytes with padding; `done`: nothing follows."""
        call = self.open.get(number)
        if call is None:
            if not self.begun(number):
                text = f"DATA for stream {number}, which is not open"
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, text)
            self._allowance.charge(1)  # Of a call that was given up.
            return
        call.in_window -= size  # Given back as soon as half of it is used, so it never is used up.
        if call.reply is None:
            self._break(call, "The server's answer begins without headers.")
            return
        if call.answer is None and call.reader is None and is_one_message(payload):
            call.answer = False, payload[PREFIX_SIZE:]
        elif payload:
            try:
                self._take_pieces(call, payload)
            except CallFault as fault:
                self._break(call, fault.text)
                return
        elif not done:
            self._allowance.charge(1)
        if done:
            self._finish(call, Reply())
        elif call.in_window < STREAM_WINDOW // 2:
            self._sender.control(frames.window_update(number, STREAM_WINDOW - call.in_window))
            call.in_window = STREAM_WINDOW

    def _take_pieces(self, call: Call, payload: bytes) -> None:
        """Take DATA that is not just one message.

        Raises:
            CallFault: it makes no sense.
        """
        if call.reader is None:
            call.reader = MessageReader(-1)
        found = call.reader.feed(payload)
        if found:
            if len(found) > 1 or call.answer is not None:
                text = "The server answers with more than one message."
                raise CallFault(StatusCode.INTERNAL, text)
            call.answer = found[0]

    def _finish(self, call: Call, trailers: Reply) -> None:
        """End a call after its trailers. They may be all there is of the answer."""
        if call.said:
            self._forget(call)
        else:
            self._end(call, ErrorCode.CANCEL)  # The server has answered without the rest of the request.
        failure = None
        if call.reply is None:
            self.answers += 1
            failure = outcomes.after_headers(trailers)
        failure = failure or outcomes.after_trailers(trailers)
        if failure is None:
            call.succeed()
        else:
            call.fail(failure)

    def take_reset(self, number: int, code: int) -> None:
        """Take that the server gives up a call."""
        call = self.open.get(number)
        if call is None:
            return
        if code != ErrorCode.REFUSED_STREAM:
            self._forget(call)
            call.fail(outcomes.after_reset(code))
            return
        # grpcio's servers refuse a call that begins as soon as another has its answer, if that makes one too
        # many for them: they take a moment to forget.
        self._full = len(self.open) > 1
        self._forget(call, made_room=False)
        if self._full and not self.leaving:
            call.renew()
            self.begin(call)
        else:
            self._refused(call, "The server refuses the call.")

    def take_window(self, number: int, size: int) -> None:
        """Take a WINDOW_UPDATE."""
        if number == 0:
            self._sender.grant(size)
        elif call := self.open.get(number):
            try:
                self._sender.grant_stream(call, size)
            except StreamFault as fault:
                self._break(call, fault.text, fault.code)
        self.pump()

    def take_settings(self, settings: list[tuple[int, int]]) -> None:
        """Take what the server grants."""
        for name, value in settings:
            if name == frames.MAX_CONCURRENT_STREAMS:
                self._most = value
            elif name == frames.ENABLE_PUSH and value:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a server enables push")
        self._sender.settings(settings, self.open.values())
        self.pump()
        self._next()

    def take_goaway(self, last: int, text: str) -> None:
        """Let the calls end that the server has begun, up to stream `last`; the others go elsewhere."""
        self.leaving = True
        queue, self._queue = self._queue, {}
        for call in [call for number, call in self.open.items() if number > last]:
            self._forget(call)
            self._refused(call, text)
        for call in queue:
            call.place = None
            self._again(call, text)
        self._check_empty()

    def all_taken(self) -> None:
        """Nothing waits for that."""

    # How calls end.

    def end(self, number: int, code: ErrorCode) -> None:
        """Reset a stream, whether it is open or not: the server has broken a rule."""
        if call := self.open.get(number):
            self._break(call, "The server breaks a rule of HTTP/2.", code)
        else:
            self._sender.control(frames.rst_stream(number, code))

    def end_all(self, text: str) -> None:
        """End all calls, as the connection has ended; those that were not sent go elsewhere."""
        self.leaving = True
        queue, self._queue = self._queue, {}
        for call in list(self.open.values()):
            self._forget(call)
            call.fail(outcomes.unavailable(text))
        for call in queue:
            call.place = None
            self._again(call, text)

    def cancel_all(self) -> None:
        """End all calls, as nobody wants them any more, and tell the server."""
        self.leaving = True
        for call in [*self.open.values(), *self._queue]:
            self.give_up(call)
            call.fail(outcomes.cancelled())

    def _refused(self, call: Call, text: str) -> None:
        """Try a call again that a server has not looked at; once."""
        if call.refused:
            call.fail(outcomes.unavailable(text))
        else:
            call.refused = True
            self._again(call, text)

    def _break(self, call: Call, text: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        """End a call whose answer makes no sense."""
        self._end(call, code)
        call.fail(outcomes.internal(text))

    def _end(self, call: Call, code: ErrorCode) -> None:
        self._sender.control(frames.rst_stream(call.id, code))
        self._forget(call)

    def _forget(self, call: Call, made_room: bool = True) -> None:
        call.place = None
        self._full = self._full and not made_room
        del self.open[call.id]
        if not call.said:
            self._sender.forget(call)
        if self._queue:
            self._next()
        elif self.leaving:
            self._check_empty()

    def _next(self) -> None:
        """Begin calls that have waited for others to end."""
        while self._queue and not self.leaving and self._room():
            call = next(iter(self._queue))
            del self._queue[call]
            self.begin(call)

    def _check_empty(self) -> None:
        if self.leaving and not self.open:
            self._when_empty()
