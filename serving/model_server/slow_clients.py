"""Requests over HTTP that arrive too slowly, or have no end of headers.

uvicorn waits for the rest of a request as long as the client likes, so a few hundred clients that send a
byte now and then would hold all its connections. Here a request has to arrive within some seconds, more for
what is large; the rule is that of Apache's mod_reqtimeout. Connections are looked at once a second, so that
the usual request pays next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving import json_outputs

log = logging.getLogger(__name__)

READ_SECONDS = 20.0
"""How long a request may take to arrive, from its first byte."""
BYTES_PER_SECOND = 500
"""A request gets a second more for each so many of its bytes."""
SILENT_SECONDS = 75.0
"""How long a new connection may say nothing."""
MAX_HEAD_BYTES = 1 << 16
"""Longest request line and headers together."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, which notes when a request began to arrive, and how much of it has."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._since: float | None = self.loop.time()  # None: no request is expected or arriving.
        self._begun = False
        self._idle_since: float | None = None  # Between two requests, where uvicorn has set no timer.
        self._in_head = True
        self._received = 0

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        self._parse(data)
        if self._since is None:
            return
        self._received += len(data)
        if self._in_head and self._received > MAX_HEAD_BYTES:
            self._refuse(431, f"The request's headers are longer than {MAX_HEAD_BYTES} bytes.")

    def _parse(self, data: bytes) -> None:
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Note when a request begins."""
        super().on_message_begin()
        self._note_begin()

    def _note_begin(self) -> None:
        self._since, self._begun, self._in_head, self._received = self.loop.time(), True, True, 0
        self._idle_since = None

    def _wait_for_next(self) -> None:
        self._idle_since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Note that only the body is missing."""
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        """Note that all is there."""
        super().on_message_complete()
        self._since = None

    def check(self, now: float) -> None:
        """Close the connection if its request is overdue, or the next one does not come."""
        if self._idle_since is not None and now - self._idle_since > self.timeout_keep_alive:
            self.transport.close()
        if self._since is None or self.transport.is_closing():
            return
        seconds = now - self._since
        if not self._begun:
            if seconds > SILENT_SECONDS:
                self.transport.close()
        elif seconds > READ_SECONDS + self._received / BYTES_PER_SECOND:
            self._refuse(408, f"The request did not arrive within {seconds:.0f} s.")

    def _refuse(self, status: int, text: str) -> None:
        log.info("request_cut_off", extra={"status": status, "bytes": self._received, "client": self.client})
        self._since = None
        reason = {408: "Request Timeout", 431: "Request Header Fields Too Large"}[status]
        body = json_outputs.error(text)
        if self._may_answer():
            self.transport.write(
                f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
                + body
            )
        self.transport.close()

    def _may_answer(self) -> bool:
        """Whether no other answer is on its way; that of a request before this one may be."""
        if self.cycle is None:
            return True
        return bool(self.cycle.response_complete if self._in_head else not self.cycle.response_started)


def check_all(connections: set[Any], now: float) -> None:
    """Close the connections whose requests are overdue."""
    for connection in list(connections):
        connection.check(now)


def check_now_and_then(connections: set[Any], tick: int) -> None:
    """Check them in each tenth tick of uvicorn, which has ten a second."""
    if tick % 10 == 0:
        check_all(connections, asyncio.get_running_loop().time())
