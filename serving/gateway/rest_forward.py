"""The REST side in front of a sidecar: resolves the path, forwards the body as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from urllib.parse import quote, unquote

from serving.errors import InvalidInput, MalformedRequest, NotFound, ServingError
from serving.gateway.asgi import Receive, Scope, Send, send_answer, send_error, send_text
from serving.gateway.http_pool import Headers, HTTPPool, Response, UpstreamUnavailable
from serving.gateway.in_flight import InFlight
from serving.gateway.sidecar_errors import SidecarLost, SidecarTooSlow, SidecarUnreachable, is_lost
from serving.model_server.rest import MAX_BODY_BYTES
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
    """An ASGI app for `/v1/models/...`, answered by the sidecar.

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"Cannot serve ASGI's {scope['type']!r} here. Mount the app for HTTP only.")
        body = await _body(receive)
        if body is None:
            text = f"The request body is larger than {MAX_BODY_BYTES} bytes, the most this gateway takes."
            await send_text(send, 413, text)
            return
        if scope["method"] == "OPTIONS":
            await send_answer(send, 200 if _has_web_origin(scope["headers"]) else 400, [], b"")
            return
        try:
            target, version = self._resolve(scope["method"], _path_of(scope))
            with self._in_flight.request(*version) if version else nullcontext():
                response = await self._exchange(scope, target, body)
        except ServingError as error:
            await send_error(send, error)
            return
        await send_answer(send, response.status, _kept(response.headers), response.body)

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

    async def _exchange(self, scope: Scope, target: str, body: bytes) -> Response:
        try:
            method, headers = scope["method"].encode(), _kept(scope["headers"])
            response = await self._pool.request(method, target.encode("latin-1"), headers, body)
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


def _path_of(scope: Scope) -> str:
    """Return the raw path with the query string, which TensorFlow Serving takes for a part of it."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    return f"{path}?{scope['query_string'].decode('latin-1')}" if scope.get("query_string") else path


def _kept(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in _NOT_FORWARDED]


def _has_web_origin(headers: Headers) -> bool:
    """What TensorFlow Serving asks of a preflight request."""
    return any(name == b"origin" and value.startswith((b"http://", b"https://")) for name, value in headers)


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body, or None if it is too large."""
    message = await receive()
    parts: list[bytes] = [message.get("body", b"")]
    size = len(parts[0])
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
    return parts[0] if len(parts) == 1 else b"".join(parts)
