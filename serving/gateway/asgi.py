"""The types of ASGI, and answers in TensorFlow Serving's form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from serving.errors import Code, ServingError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def send_error(send: Send, error: ServingError) -> None:
    """Answer with the error's own status."""
    challenge = [(b"www-authenticate", b"Bearer")] if error.code is Code.UNAUTHENTICATED else []
    await send_text(send, error.http_status, str(error), challenge)


async def send_text(send: Send, status: int, error: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer with TensorFlow Serving's error body."""
    headers = [(b"content-type", b"application/json"), *headers]
    await send_answer(send, status, headers, json.dumps({"error": error}).encode())


async def send_answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
