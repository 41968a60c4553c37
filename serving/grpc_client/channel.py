"""The channel: one connection to one server, another when that one ends, and calls that wait meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from serving.grpc_client import outcomes
from serving.grpc_client.calls import Call
from serving.grpc_client.connection import Connection
from serving.grpc_client.patience import CONNECT_SECONDS, Backoff
from serving.grpc_client.requests import request_block, timeout_header
from serving.grpc_client.targets import Target
from serving.grpc_transport.limits import LINGER_SECONDS, MAX_INFLATED
from serving.grpc_transport.messages import CallFault, inflated

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_MOST_MOVES = 10
"""How many connections may end, one after another, before a call has been sent."""


class Channel:
    """Calls one server, over one connection at a time; to be used in the event loop that it is made in.

    It connects when there is a call. A server that cannot be reached is left alone for a moment, up to a
    second; calls that come meanwhile fail at once, as UNAVAILABLE. Calls fail too that were sent on a
    connection that breaks; those that the server has not looked at, as it says, are sent once more.

    Args:
        target: the server's `host:port`, or `unix:PATH`.
    """

    def __init__(self, target: str) -> None:
        self._target = Target(target)
        self.target = target
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()  # That one, and those that only finish what they have.
        self._waiting: dict[Call, None] = {}  # For a connection.
        self._connecting: asyncio.Task[None] | None = None
        self._backoff = Backoff()
        self._ticking: asyncio.TimerHandle | None = None
        self._closed = False
        self._empty = asyncio.Event()

    def unary_unary(self, method: str) -> UnaryUnary:
        """Return what calls a method, like `/package.Service/Method`."""
        return UnaryUnary(self, request_block(self._target.authority, method))

    async def close(self) -> None:
        """End all calls, as CANCELLED, and close."""
        self._closed = True
        for call in list(self._waiting):
            self.give_up(call)
            call.fail(outcomes.cancelled())
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        self._empty.clear()
        for connection in list(self._connections):
            connection.leave()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), LINGER_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    # What calls want.

    def begin(self, call: Call) -> None:
        """Send a call, now or once there is a connection."""
        connection = self._connection
        if connection is not None and connection.takes_calls:
            connection.begin(call)
        elif self._closed:
            call.fail(outcomes.cancelled())
        elif self._connecting is not None or self._backoff.over(self._loop.time()):
            call.place = self
            self._waiting[call] = None
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
        else:
            call.fail(outcomes.unavailable(self._backoff.failure))

    def give_up(self, call: Call) -> None:
        """Forget a call that waits for a connection."""
        self._waiting.pop(call, None)
        call.place = None

    # What connections want.

    def again(self, call: Call, text: str) -> None:
        """Take a call to another connection; `text`: what to say if there have been enough."""
        if call.outcome.done():
            call.place = None
            return
        call.moves += 1
        if call.moves > _MOST_MOVES:
            call.fail(outcomes.unavailable(text))
        else:
            call.renew()
            self.begin(call)

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def _connect(self) -> None:
        """Make a connection for the calls that wait; tell them if there is none."""
        try:
            connection = await self._opened()
        except Exception as error:
            if not isinstance(error, (OSError, UnicodeError)):
                log.exception("connecting_failed", extra={"server": self.target})
            why = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
            failure = f"Cannot connect to {self.target}: {why}."
            self._backoff.failed(failure, self._loop.time())
            waiting, self._waiting = self._waiting, {}
            self._connecting = None
            for call in waiting:
                call.place = None
                call.fail(outcomes.unavailable(failure))
            return
        self._backoff.succeeded()
        self._connection, self._connecting = connection, None
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            self.again(call, f"The connection to {self.target} was lost.")
        self._tick()

    async def _opened(self) -> Connection:
        """Return a connection whose server has said what it grants."""
        connection = Connection(self)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._target.connect(lambda: connection)
                self._connections.add(connection)
                await connection.ready
        except BaseException:
            if connection in self._connections:
                connection.abort()
            raise
        return connection

    def _tick(self) -> None:
        if self._ticking is None and self._connections:
            self._ticking = self._loop.call_later(_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._ticking = None
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._tick()


class UnaryUnary:
    """Calls one method that takes a message and answers with one."""

    def __init__(self, channel: Channel, block: bytes) -> None:
        self._channel, self._block = channel, block
        self._loop = asyncio.get_running_loop()

    async def __call__(self, message: bytes, timeout: float | None = None) -> bytes:
        """Return the answer. `timeout`: in seconds.

        Raises:
            CallFailed: there is none.
        """
        call, timer = Call(self._block, message, self._loop.create_future()), None
        if timeout is not None:
            if timeout <= 0:
                raise outcomes.expired()
            call.block += timeout_header(timeout)
            timer = self._loop.call_later(timeout, _expire, call)
        try:
            self._channel.begin(call)
            compressed, data = await call.outcome
        except asyncio.CancelledError:
            if not call.outcome.cancelled() and call.outcome.done():
                call.outcome.exception()  # It came too late to be anybody's.
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if call.place is not None:  # Nobody waits for it any more.
                call.place.give_up(call)
        return await self._plain(call, data) if compressed else data

    async def _plain(self, call: Call, data: bytes) -> bytes:
        """Return a message without its compression, which is undone in another thread."""
        encoding = "" if call.reply is None else call.reply.encoding
        try:
            return await self._loop.run_in_executor(None, inflated, data, encoding, MAX_INFLATED)
        except CallFault as fault:
            raise outcomes.internal(fault.text) from fault


def _expire(call: Call) -> None:
    call.fail(outcomes.expired())
