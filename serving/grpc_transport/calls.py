"""From a request that has arrived to what its handler answers.

Handlers are those of grpc.aio: they take a request, or an iterator of them, and a context; they are
coroutines, or generators of answers, or write to the context.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from serving.coroutines import resumed
from serving.grpc_transport.headers import Metadata
from serving.grpc_transport.limits import MAX_INFLATED, Limits
from serving.grpc_transport.messages import CallFault, check_sent, inflated
from serving.grpc_transport.stream import Stream

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
_OK = 0


def at_once(handler: F) -> F:
    """Mark a unary handler that may run where its request arrives, until it first waits.

    There is no asyncio task yet then, so nothing that asks for the current one may come before the first
    wait. A handler that never waits costs no task at all; one that returns its answer, instead of something
    to wait for, no coroutine either.
    """
    handler.at_once = True  # type: ignore[attr-defined]
    return handler


def runs_at_once(handler: Callable[..., Any]) -> bool:
    """Whether a handler is marked so."""
    return getattr(handler, "at_once", False)


class Way(Protocol):
    """What a call needs of its connection."""

    limits: Limits
    peer: str

    def send_headers(self, stream: Stream, metadata: Metadata) -> None:
        """Send headers now."""

    def send_message(self, stream: Stream, message: bytes) -> asyncio.Future[None] | None:
        """Send a message; return what to wait for, if there is no room for it yet."""

    def next_message(self, stream: Stream) -> tuple[bool, bytes] | None:
        """Return the next message from the client, if it is here."""

    def answer(self, stream: Stream, message: bytes) -> None:
        """Send the only message, and end the call with OK."""

    def finish(self, stream: Stream, status: int, text: str, metadata: Metadata) -> None:
        """End the call."""


class Context:
    """What a handler may know and do of its call: the part of grpc.aio.ServicerContext that is used here."""

    __slots__ = ("_code", "_details", "_trailing", "_way", "stream")

    def __init__(self, way: Way, stream: Stream) -> None:
        self._way, self.stream = way, stream
        self._code: Any = None
        self._details = ""
        self._trailing: Metadata = ()

    def invocation_metadata(self) -> Metadata:
        """Return what the client sent beside the request."""
        return self.stream.head.metadata

    def peer(self) -> str:
        """Return the client's address."""
        return self._way.peer

    def time_remaining(self) -> float | None:
        """Return the seconds left to the client's deadline; None: it has none."""
        deadline = self.stream.deadline
        return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status that the call ends with."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Set the text of the status."""
        self._details = details

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set what is sent with the status."""
        self._trailing = tuple(metadata)

    def code(self) -> Any:
        """Return the status that was set, or None."""
        return self._code

    def details(self) -> str:
        """Return the text that was set."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """Return what was set."""
        return self._trailing

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send headers before the first message."""
        self._way.send_headers(self.stream, metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with an error.

        Raises:
            AbortError: always.
        """
        self._code, self._details = code, details
        self._trailing = tuple(trailing_metadata) or self._trailing
        raise grpc.aio.AbortError("Locally aborted.")

    async def write(self, response: Any) -> None:
        """Send one of several answers; return when there is room for the next."""
        serialize = self.stream.handler.response_serializer
        data = response if serialize is None else serialize(response)
        check_sent(len(data), self._way.limits.max_send)
        waits = self._way.send_message(self.stream, data)
        if waits is not None:
            await waits

    async def read(self) -> Any:
        """Return the next of several requests, or grpc.aio.EOF."""
        stream = self.stream
        while (message := self._way.next_message(stream)) is None:
            if stream.remote_done:
                return grpc.aio.EOF
            stream.waiter = asyncio.get_running_loop().create_future()
            await stream.waiter
        return parsed(stream, await plain(self._way, stream, *message))

    async def requests(self) -> AsyncIterator[Any]:
        """Yield the requests of a client that sends several."""
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request


def parsed(stream: Stream, data: bytes) -> Any:
    """Return a request as its handler takes it."""
    deserialize = stream.handler.request_deserializer
    return data if deserialize is None else deserialize(data)


async def plain(way: Way, stream: Stream, compressed: bool, data: bytes) -> bytes:
    """Return a message without compression, which is undone in another thread."""
    if not compressed:
        return data
    limit = way.limits.max_receive if way.limits.max_receive >= 0 else MAX_INFLATED
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, inflated, data, stream.head.encoding, limit)


def start(way: Way, stream: Stream, message: tuple[bool, bytes] | None, may_run_here: bool) -> None:
    """Have a call handled. `message`: the request; None: of several, which come one by one."""
    context = Context(way, stream)
    handler = stream.handler
    if may_run_here and message is not None and not message[0] and runs_at_once(handler.unary_unary):
        coroutine = _handled(way, context, message[1])
        if coroutine is None:
            return
        try:
            waiting = coroutine.send(None)
        except StopIteration:
            return
        coroutine = resumed(coroutine, waiting)
    else:
        coroutine = _call(way, context, message)
    stream.task = asyncio.get_running_loop().create_task(coroutine)


async def _call(way: Way, context: Context, message: tuple[bool, bytes] | None) -> None:
    stream = context.stream
    if message is None:
        await _streaming(way, context, context.requests())
        return
    try:
        data = await plain(way, stream, *message)
    except CallFault as fault:
        way.finish(stream, fault.status, fault.text, ())
        return
    if stream.handler.response_streaming:
        await _streaming(way, context, data)
    else:
        coroutine = _handled(way, context, data)
        if coroutine is not None:
            await coroutine


def _handled(way: Way, context: Context, data: bytes) -> Coroutine[Any, Any, None] | None:
    """Have a unary call handled; return what is left to do, if its handler has something to wait for."""
    stream = context.stream
    try:
        answer = stream.handler.unary_unary(parsed(stream, data), context)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  A handler may raise anything.
        _fail(way, context, error)
        return None
    if hasattr(answer, "__await__"):
        return _awaited(way, context, answer)
    _answer(way, context, answer)
    return None


async def _awaited(way: Way, context: Context, waiting: Awaitable[Any]) -> None:
    try:
        answer = await waiting
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  A handler may raise anything.
        _fail(way, context, error)
    else:
        _answer(way, context, answer)


def _answer(way: Way, context: Context, answer: Any) -> None:
    """Send what a unary handler has returned, unless it has set another status than OK."""
    if context.code() not in (None, grpc.StatusCode.OK):
        _finish(way, context)
        return
    stream = context.stream
    serialize = stream.handler.response_serializer
    try:
        message = answer if serialize is None else serialize(answer)
        check_sent(len(message), way.limits.max_send)
    except Exception as error:  # noqa: BLE001  A serializer may raise anything.
        _fail(way, context, error)
        return
    if context.trailing_metadata():
        way.send_message(stream, message)
        _finish(way, context)
    else:
        way.answer(stream, message)


async def _streaming(way: Way, context: Context, request: Any) -> None:
    """Handle a call with several requests or answers."""
    handler = context.stream.handler
    try:
        if not handler.request_streaming:
            request = parsed(context.stream, request)
        behavior = _behavior(handler)
        answers = behavior(request, context)
        if hasattr(answers, "__aiter__"):
            async for answer in answers:
                await context.write(answer)
        else:
            answer = await answers
            if not handler.response_streaming:
                await context.write(answer)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  A handler may raise anything.
        _fail(way, context, error)
        return
    _finish(way, context)


def _behavior(handler: Any) -> Callable[..., Any]:
    if handler.request_streaming:
        return handler.stream_stream if handler.response_streaming else handler.stream_unary
    return handler.unary_stream


def _finish(way: Way, context: Context) -> None:
    code = context.code() or grpc.StatusCode.OK
    way.finish(context.stream, code.value[0], context.details(), context.trailing_metadata())


def _fail(way: Way, context: Context, error: BaseException) -> None:
    """End a call whose handler has raised."""
    if isinstance(error, asyncio.CancelledError):
        # Whoever cancelled the call has ended it; else something that the handler waited for was cancelled.
        way.finish(context.stream, grpc.StatusCode.CANCELLED.value[0], "Cancelled", ())
    elif isinstance(error, CallFault):
        way.finish(context.stream, error.status, error.text, ())
    elif context.code() not in (None, grpc.StatusCode.OK):
        _finish(way, context)
    else:
        log.error("handler_failed", exc_info=error, extra={"method": context.stream.head.path})
        text = f"Unexpected {type(error)}: {error}"
        way.finish(context.stream, grpc.StatusCode.UNKNOWN.value[0], text, ())
