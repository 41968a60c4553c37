"""Bounds the size of request bodies while they stream in, so that no request fills memory or disk."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 20
"""Largest body of a JSON request."""
MAX_UPLOAD_BYTES = 160 << 20
"""Largest body of a job's submission: a bundle that does not compress, and its form."""


def limit_of(scope: Scope) -> int:
    """Return how many bytes the body of this request may have."""
    is_upload = scope["method"] == "POST" and scope["path"].rstrip("/").endswith("/jobs")
    return MAX_UPLOAD_BYTES if is_upload else MAX_BODY_BYTES


class BodyLimit:
    """ASGI middleware that answers 413 as soon as a body is known to be too large."""

    def __init__(self, app: ASGIApp, limit: Callable[[Scope], int] = limit_of) -> None:
        """Wrap `app`; `limit` tells the number of bytes allowed for a request."""
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        allowed = self._limit(scope)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        left = allowed

        async def counted() -> Message:
            nonlocal left
            if declared.isdigit() and int(declared) > allowed:
                raise _too_large(allowed)
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _too_large(allowed)
            return message

        await self._app(scope, counted, send)


def _too_large(allowed: int) -> HTTPException:
    # The rest of the body is not read, so the connection cannot be used again.
    return HTTPException(
        413,
        f"The request is too large: at most {allowed / 2**20:g} MiB are taken.",
        headers={"Connection": "close"},
    )
