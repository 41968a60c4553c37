"""Questions and answers between two processes over a socket: each may ask the other, many at once.

A message is four bytes of length and JSON. A question that is given up is told, so that the other side stops
working on it. Used between a supervisor and its workers, which trust one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from serving.errors import Code, ServingError

log = logging.getLogger(__name__)

Handler = Callable[[Any], Awaitable[Any]]
"""What is asked -> the answer, both plain values; a ServingError is passed on to who asked."""


class ChannelClosed(ConnectionError):
    """The other process is gone."""


class RemoteError(ServingError):
    """What the other process refused or failed to do, with its code and text."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return self.text


class Channel:
    """One end. `await run()` in a task; it returns when the other end is closed."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, Handler]
    ) -> None:
        self._reader, self._writer, self._handlers = reader, writer, handlers
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    @classmethod
    async def over(cls, end: socket.socket, handlers: Mapping[str, Handler]) -> Channel:
        """Return the end of a channel at a connected socket."""
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, handlers)

    async def ask(self, kind: str, value: Any = None) -> Any:
        """Return the other side's answer.

        Raises:
            RemoteError: it refuses, or failed. ChannelClosed: it is gone.
        """
        if self._closed:
            raise ChannelClosed(f"Cannot ask '{kind}': the other process is gone.")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send({"ask": kind, "number": number, "value": value})
        try:
            return await answer
        except asyncio.CancelledError:
            self._send({"give_up": number})
            raise
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Take messages until the other end is closed."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                self._take(json.loads(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # This is how the other process ends, in whatever way it does.
        finally:
            self._closed = True
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(ChannelClosed("The other process ended before it answered."))
            for task in self._answering.values():
                task.cancel()
            self._writer.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self._closed:
            data = json.dumps(message).encode()
            self._writer.write(len(data).to_bytes(4, "big") + data)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ask" in message:
            number = message["number"]
            task = asyncio.create_task(self._answer(number, message["ask"], message["value"]))
            self._answering[number] = task
            task.add_done_callback(lambda _: self._answering.pop(number))
        elif "give_up" in message:
            if message["give_up"] in self._answering:
                self._answering[message["give_up"]].cancel()
        else:
            answer = self._asked.get(message["number"])
            if answer is None or answer.done():
                return  # Nobody waits for it any more.
            if "code" in message:
                answer.set_exception(RemoteError(Code(message["code"]), message["text"]))
            else:
                answer.set_result(message["value"])

    async def _answer(self, number: int, kind: str, value: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                answer = {"number": number, "value": await self._handlers[kind](value)}
            except ServingError as error:
                answer = {"number": number, "code": int(error.code), "text": str(error)}
            except ChannelClosed as error:
                answer = {"number": number, "code": int(Code.UNAVAILABLE), "text": str(error)}
            except Exception:
                log.exception("request_failed", extra={"kind": kind})
                text = "Internal error; the server's log has the details."
                answer = {"number": number, "code": int(Code.INTERNAL), "text": text}
            self._send(answer)
