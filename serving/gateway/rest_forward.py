"""The REST side in front of a sidecar: resolves the path, forwards the body as it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import nullcontext
from urllib.parse import unquote

from serving.asgi import Answer, Headers, error_answer, has_web_origin
from serving.errors import InvalidInput, MalformedRequest, NotFound, ServingError
from serving.gateway.http_pool import HTTPPool, Response, UpstreamUnavailable
from serving.gateway.in_flight import InFlight
from serving.gateway.sidecar_errors import SidecarLost, SidecarTooSlow, SidecarUnreachable, is_lost
from serving.routing import Routes

_PREDICTION = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(\w+)", re.IGNORECASE)
_STATUS = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(/metadata)?", re.IGNORECASE)
_VERBS = ("predict", "classify", "regress")
# The client's connection and the sidecar's are two; and the gateway's token is no business of the sidecar.
_NOT_FORWARDED = frozenset(
    (
        b"host",
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"expect",
        b"authorization",
        b"content-length",
        b"proxy-authorization",
        b"proxy-connection",
        b"date",
        b"server",
    )
)


class RESTForwarder:
    """Answers `/v1/models/...` by the sidecar.

    Args:
        pool: connections to the sidecar's REST service.
        routes: returns the routes in effect.
        in_flight: counts the requests.
        on_trouble: called when the sidecar did not answer, or did not have what it should have.
    """

    def __init__(
        self,
        pool: HTTPPool,
        routes: Callable[[], Routes],
        in_flight: InFlight,
        on_trouble: Callable[[], None],
    ) -> None:
        self._pool, self._routes, self._in_flight, self._on_trouble = pool, routes, in_flight, on_trouble

    async def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """Answer one whole request; see `serving.asgi.Answering`."""
        if method == "OPTIONS":
            return 200 if has_web_origin(headers) else 400, b"", []
        try:
            forwarded, version = self._resolve(method, target)
            with self._in_flight.request(*version) if version else nullcontext():
                response = await self._exchange(method, forwarded, headers, body)
        except ServingError as error:
            return error_answer(error)
        return response.status, response.body, _kept(response.headers)

    def _resolve(self, method: str, path: str) -> tuple[str, tuple[str, int] | None]:
        """Return the path to forward to, and the model and version it uses; None for a question of status.

        Raises:
            ServingError: no such path, model, version or label.
        """
        routes = self._routes()
        if method == "POST" and (found := _PREDICTION.fullmatch(path)) and found[4] in _VERBS:
            suffix = f":{found[4]}"
        elif method == "GET" and (found := _STATUS.fullmatch(path)):
            suffix = "/metadata" if found[4] else ""
            if not suffix and not found[3]:
                routes.check_model(unquote(found[1]))
                return path, None
        elif method == "GET" and path.rstrip("/").lower() == "/v1/models":
            raise InvalidInput("Missing model name in request.")
        elif path[:4].lower() != "/v1/":
            raise NotFound(f"Nothing is served at {path}. Predictions are under /v1/models/.")
        else:
            raise MalformedRequest(method, path)
        model = unquote(found[1])
        version = routes.resolve(
            model, int(found[2]) if found[2] else None, unquote(found[3]) if found[3] else None
        )
        return f"/v1/models/{found[1]}/versions/{version}{suffix}", (model, version)

    async def _exchange(self, method: str, target: str, headers: Headers, body: bytes) -> Response:
        await asyncio.sleep(0)  # From here on there is a task, which the pool's timeout needs.
        try:
            response = await self._pool.request(
                method.encode(), target.encode("latin-1"), _kept(headers), body
            )
        except UpstreamUnavailable as error:
            self._on_trouble()
            raise SidecarUnreachable(str(error)) from error
        except TimeoutError as error:
            self._on_trouble()
            raise SidecarTooSlow("no answer in time.") from error
        if response.status == 404 and is_lost(response.body.decode(errors="replace")):
            self._on_trouble()
            raise SidecarLost
        return response


def _kept(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in _NOT_FORWARDED]
