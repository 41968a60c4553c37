"""The types of ASGI, and answers in TensorFlow Serving's form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.errors import Code, ServingError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def send_error(send: Send, error: ServingError) -> None:
    """Answer with TensorFlow Serving's error body."""
    headers = [(b"content-type", b"application/json")]
    if error.code is Code.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send_answer(send, error.http_status, headers, json.dumps({"error": str(error)}).encode())


async def send_answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
