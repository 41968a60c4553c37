"""The way in for REST: the token check, the metrics, and then the path to the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from serving.asgi import Answer, Headers, Receive, Scope, Send, error_answer, send_answer, serve
from serving.gateway.access import Access, Unauthenticated
from serving.gateway.counting import count_rest, count_rest_at_once
from serving.metrics import CONTENT_TYPE, Metrics, page

METRICS_PATH = "/metrics"


class AnswersREST(Protocol):
    """What answers REST for a runtime."""

    async def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """See `serving.asgi.Answering`."""


class HasREST(Protocol):
    """A path of requests to a runtime."""

    @property
    def rest(self) -> AnswersREST:
        """What answers REST."""


class RESTEntrance:
    """An ASGI application; an object and no method, as servers look at `__call__` to tell what kind it is."""

    def __init__(self, access: Access, path: Callable[[], HasREST | None], metrics: Metrics) -> None:
        self._access, self._path, self._metrics = access, path, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            # Before the body is read: who may not ask may not fill the memory.
            try:
                self._access.check(scope["headers"])
            except Unauthenticated as error:
                await send_answer(send, error_answer(error))
                return
        await serve(self._admitted, scope, receive, send)

    async def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """Answer one whole request; see `serving.asgi.Answering`."""
        try:
            self._access.check(headers)
        except Unauthenticated as error:
            return error_answer(error)
        return await self._admitted(method, target, headers, body)

    def answer_at_once(self, target: str, headers: Headers, body: bytes) -> Answer | None:
        """Answer a POST where that takes no time worth a coroutine; None: ask `answer`."""
        path = self._path()
        at_once = None if path is None else getattr(path.rest, "answer_at_once", None)
        if at_once is None or not self._access.admits(headers):
            return None
        return count_rest_at_once(at_once, target, headers, body, self._metrics)

    async def _admitted(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        if target.partition("?")[0] == METRICS_PATH:
            return 200, page(self._metrics.snapshot()).encode(), [(b"content-type", CONTENT_TYPE)]
        path = self._path()
        if path is None:
            raise RuntimeError("Cannot answer before the gateway is started. Await start() first.")
        return await count_rest(path.rest.answer, method, target, headers, body, self._metrics)
