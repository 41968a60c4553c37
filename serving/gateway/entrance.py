"""The way in for REST: the token check, the metrics, and then the path to the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from serving.gateway.access import Access, Unauthenticated
from serving.gateway.asgi import App, Receive, Scope, Send, send_answer, send_error
from serving.gateway.counting import count_rest
from serving.metrics import CONTENT_TYPE, Metrics, page

METRICS_PATH = "/metrics"


class HasREST(Protocol):
    """A path of requests to a runtime."""

    @property
    def rest(self) -> App:
        """What answers REST."""


class RESTEntrance:
    """An ASGI application; an object and no method, as servers look at `__call__` to tell what kind it is."""

    def __init__(self, access: Access, path: Callable[[], HasREST | None], metrics: Metrics) -> None:
        self._access, self._path, self._metrics = access, path, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = self._path()
        if path is None:
            raise RuntimeError("Cannot answer before the gateway is started. Await start() first.")
        if scope["type"] == "http":
            try:
                self._access.check(scope["headers"])
            except Unauthenticated as error:
                await send_error(send, error)
                return
            if scope["path"] == METRICS_PATH:
                text = page(self._metrics.snapshot()).encode()
                await send_answer(send, 200, [(b"content-type", CONTENT_TYPE)], text)
                return
            await count_rest(path.rest, scope, receive, send, self._metrics)
            return
        await path.rest(scope, receive, send)
