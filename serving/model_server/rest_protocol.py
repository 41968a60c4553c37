"""HTTP/1.1 for predictions: the short way from a connection to an application and back.

A small prediction costs less than what ASGI needs to ask for it: a task, an event, a description of the
request and two messages of answer. So an application may have, beside its ASGI interface, a coroutine
function `answer` (`serving.asgi.Answering`), and a function `answer_at_once` for what needs no coroutine
either. It is asked the usual request, once that is whole: a POST under
/v1/models/ of a known, moderate length, on a connection where nothing else is going on. It runs where the
last bytes arrive, until it first waits; only then it becomes a task. Any other request takes the way of ASGI.

A client that keeps a connection sends the same head again and again, but for the length of the body. So the
heads of such requests are kept, with what was found in them, and a request that arrives in one piece with a
head known by its bytes needs no parser: nothing else could be found in it.

An offer to go on with HTTP/2, as Java's HttpClient makes in each request, is not taken, and the request is
like any other; uvicorn would lose its body.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.asgi import Answer, Headers
from serving.coroutines import resumed
from serving.dispatch import LARGE_REQUEST
from serving.model_server.slow_clients import TimedProtocol

log = logging.getLogger(__name__)

_PREFIX = b"/v1/models/"
_BROKEN: Answer = (500, b"Internal Server Error", [(b"content-type", b"text/plain; charset=utf-8")])
_END_OF_HEAD = b"\r\n\r\n"
_LONGEST_KNOWN = 2048
_MOST_KNOWN = 1024
_PLAIN_HEAD = re.compile(rb"POST [!-~]+ HTTP/1\.1\r\n(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+\r\n")
"""A head in which every parser finds the same end: no line is folded, empty or ended in another way."""


class _Head(NamedTuple):
    """What was found in the head of a request."""

    target: str
    headers: Headers
    body_length: int


_known_heads: dict[bytes, _Head] = {}
"""The heads of requests that took the short way. All servers of a process find the same in them."""


class RESTProtocol(TimedProtocol):
    """uvicorn's HTTP, with the short way for an application that has one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._answer = getattr(self.app, "answer", None)
        self._answer_at_once = getattr(self.app, "answer_at_once", None)
        self._length = -1
        self._parts: list[bytes] | None = None  # Of a body that takes the short way.
        self._is_chunked = False
        self._resumes = False  # A new parser is told where the old one stood.
        self._is_last = False  # The server stops when it has answered the request that is arriving.
        self._between = True  # No request has arrived in part.
        self._was_short = False  # The last request took the short way.

    def shutdown(self) -> None:
        """Close, once the request that is arriving or being answered has its answer."""
        if self._parts is None:
            super().shutdown()
        else:
            self._is_last = True

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._between and data.startswith(b"POST "):
            size = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            known = _known_heads.get(data[:size]) if size <= _LONGEST_KNOWN else None
            if known is not None and len(data) == size + known.body_length and self._is_free():
                if self.timeout_keep_alive_task is not None:
                    self._unset_keepalive_if_required()
                self._idle_since = None
                self._complete(known.target, known.headers, data[size:])
                return
        super().data_received(data)

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        size = data.find(_END_OF_HEAD) + len(_END_OF_HEAD) if self._between else 0
        self._feed(data)
        if size <= _LONGEST_KNOWN and self._between and self._was_short and len(data) == size + self._length:
            self._remember(data[:size])

    def _remember(self, head: bytes) -> None:
        """Keep the head of the request that has just taken the short way, unless it may be read otherwise."""
        if _PLAIN_HEAD.fullmatch(head):
            if len(_known_heads) >= _MOST_KNOWN:
                _known_heads.clear()  # Heads are made by clients: they must not pile up.
            _known_heads[head] = _Head(self.url.decode("latin-1"), self.headers, self._length)

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._decline()
                continue
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            return

    def _decline(self) -> None:
        """Go on as if no other protocol had been offered: with a new parser, as the old one takes no more."""
        self.parser = httptools.HttpRequestParser(self)
        if self._has_body():
            framing = (
                b"Transfer-Encoding: chunked" if self._is_chunked else b"Content-Length: %d" % self._length
            )
            self._resumes = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
            self._resumes = False

    def _has_body(self) -> bool:
        return self._is_chunked or self._length > 0

    def on_message_begin(self) -> None:
        """Begin a request; ASGI's description of it waits until it is known to be needed."""
        if self._resumes:
            return
        self._between = self._was_short = False
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._length, self._is_chunked = -1, False
        self._note_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        if not self._resumes:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if self._resumes:
            return
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._is_chunked = True
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Choose the way."""
        if self._resumes:
            return
        if self._is_short():
            self._parts = []
            self._in_head = False
            return
        self._parts = None
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def _is_short(self) -> bool:
        parser = self.parser
        return (
            0 <= self._length < LARGE_REQUEST
            and self.url.startswith(_PREFIX)
            and not self.expect_100_continue
            and self._is_free()
            and parser.get_method() == b"POST"
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
        )

    def _is_free(self) -> bool:
        """Whether a request can be answered the short way now."""
        return (
            self._answer is not None
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused  # The client does not read its answers: they must not pile up.
        )

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._parts is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Have the request answered."""
        if self.parser.should_upgrade() and self._has_body():
            return  # The parser leaves the body, as another protocol is offered.
        self._between = True
        parts = self._parts
        if parts is None:
            super().on_message_complete()
            return
        self._parts, self._was_short = None, True
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._complete(self.url.decode("latin-1"), self.headers, body)

    def _complete(self, target: str, headers: Headers, body: bytes) -> None:
        self._since = None
        answer = self._answered(target, headers, body) or self._begin(target, headers, body)
        if answer is None:
            return
        self._write(answer, keep_alive=not self._is_last)
        self.server_state.total_requests += 1
        if self._is_last:
            self.transport.close()
        self._wait_for_next()

    def _answered(self, target: str, headers: Headers, body: bytes) -> Answer | None:
        """Return the answer if the application has it at once."""
        if self._answer_at_once is None:
            return None
        try:
            answer: Answer | None = self._answer_at_once(target, headers, body)
        except Exception:
            log.exception("request_failed", extra={"target": target})
            return _BROKEN
        return answer

    def _begin(self, target: str, headers: Headers, body: bytes) -> Answer | None:
        """Return the answer, or None if it has to be waited for: then a task sends it."""
        assert self._answer is not None  # Otherwise no request takes the short way.
        coroutine = self._answer("POST", target, headers, body)
        try:
            waiting = coroutine.send(None)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        except Exception:
            log.exception("request_failed", extra={"target": target})
            return _BROKEN
        self.cycle: Any = _Pending(keep_alive=not self._is_last)
        task = self.loop.create_task(self._finish(self.cycle, target, resumed(coroutine, waiting)))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return None

    async def _finish(self, pending: _Pending, target: str, coroutine: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await coroutine
        except Exception:
            log.exception("request_failed", extra={"target": target})
            answer = _BROKEN
        if not pending.disconnected:
            pending.response_started = True
            self._write(answer, keep_alive=pending.keep_alive)
        pending.response_complete = True
        if not pending.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _write(self, answer: Answer, *, keep_alive: bool) -> None:
        status, body, headers = answer
        if self.transport.is_closing():
            return
        head = _head(status, (*self.server_state.default_headers, *headers))
        if not keep_alive:
            head += b"connection: close\r\n"
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))


@lru_cache(maxsize=256)
def _head(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % header for header in headers)


class _Pending:
    """Stands where uvicorn keeps a request that is being answered."""

    def __init__(self, *, keep_alive: bool) -> None:
        self.response_started = self.response_complete = self.disconnected = False
        self.keep_alive = keep_alive
        self.message_event = asyncio.Event()
