"""Whole requests and answers, and how they are spoken over ASGI.

What answers REST here takes a request as one piece and returns the answer as one piece: `Answering`. A server
that knows of it asks at once (`serving.model_server.rest_protocol`); any other speaks ASGI, by `serve`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import quote

from serving import json_outputs
from serving.errors import Code, ServingError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
Answer = tuple[int, bytes, Headers]
"""Status, body, and headers but for the length of the body."""
Answering = Callable[[str, str, Headers, bytes], Awaitable[Answer]]
"""(method, target, headers, body) -> answer. `target` is the path as sent, percent-encoded, with the query
string if there is one. It may run before there is a task, until it first waits."""

JSON = (b"content-type", b"application/json")
_SAFE = "/:@!$&'()*+,;=~"
MAX_BODY_BYTES = 1 << 28
"""Default limit of a request body."""


class _Disconnected(Exception):
    """The client has gone before its request was whole."""


async def serve(
    answering: Answering, scope: Scope, receive: Receive, send: Send, max_body_bytes: int = MAX_BODY_BYTES
) -> None:
    """Answer over ASGI: a request by `answering`, a websocket by a close; lifespan is agreed to."""
    if scope["type"] != "http":
        await _other_protocol(scope, receive, send)
        return
    try:
        body = await _read(receive, max_body_bytes)
    except _Disconnected:
        return
    if body is None:
        answer = too_large(max_body_bytes)
    else:
        answer = await answering(scope["method"], _target(scope), scope["headers"], body)
    await send_answer(send, answer)


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    status, body, headers = answer
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def error_answer(error: ServingError) -> Answer:
    """Return the answer that tells a client of its error."""
    challenge = [(b"www-authenticate", b"Bearer")] if error.code is Code.UNAUTHENTICATED else []
    return error.http_status, json_outputs.error(str(error)), [JSON, *challenge]


def too_large(max_body_bytes: int) -> Answer:
    """Return the answer to a body larger than so many bytes."""
    text = f"The request body is larger than {max_body_bytes} bytes, the most this server takes."
    return 413, json_outputs.error(text), [JSON]


def header(headers: Headers, name: bytes) -> bytes:
    """Return the first header of a name, in lower case; empty: there is none."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def has_web_origin(headers: Headers) -> bool:
    """Whether a preflight request has what TensorFlow Serving asks of it."""
    return header(headers, b"origin").startswith((b"http://", b"https://"))


def _target(scope: Scope) -> str:
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"], safe=_SAFE)
    query = scope.get("query_string")
    return f"{path}?{query.decode('latin-1')}" if query else path


async def _read(receive: Receive, limit: int) -> bytes | None:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _Disconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body if len(body) <= limit else None
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return None
    return b"".join(parts)


async def _other_protocol(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close"})
        return
    while True:  # lifespan
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
