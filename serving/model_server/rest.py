"""The REST protocol under /v1/models as a bare ASGI application.

No framework: for a small model, routing and validation layers would cost more than the prediction. `respond`
is the whole protocol as a function; another ASGI application can call it, or call the application with a
rewritten path.
"""

from __future__ import annotations

import json
import logging
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from google.protobuf import json_format
from tensorflow_serving.apis import get_model_metadata_pb2

from serving import examples, json_outputs, json_values, messages
from serving.asgi import (
    JSON,
    MAX_BODY_BYTES,
    Answer,
    Headers,
    Receive,
    Scope,
    Send,
    has_web_origin,
    header,
    serve,
    too_large,
)
from serving.dataplane import DataPlane, ModelSpec
from serving.dispatch import Dispatcher
from serving.errors import STATUS, Code, InvalidInput, MalformedRequest, ServingError
from serving.json_tensors import PredictBody
from serving.metrics import CONTENT_TYPE, REST, Metrics
from serving.operations import Classes, Values
from serving.pace import Pace

log = logging.getLogger(__name__)

Page = Callable[[], Awaitable[str]]

MAX_UNPACKED_BYTES = 100 * 1024 * 1024
"""Limit of what a gzip body unpacks to."""

_INFERENCE = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(classify|regress|predict)", re.IGNORECASE
)
_STATUS = re.compile(
    r"/v1/models(?:/([^/:]+))?(?:/versions/(\d+)|/labels/([^/:]+))?(?:/(metadata))?", re.IGNORECASE
)
_NOT_FOUND = b"<html><head><title>404 Not Found</title></head><body><h1>Not Found</h1></body></html>\n"
_LONGEST_KEPT = 512
_INTERNAL = json_outputs.error("Internal error; the server's log has the details.")
_CORS_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"Content-Type, Content-Encoding, Authorization"),
)


@dataclass(frozen=True, slots=True)
class _Route:
    """What a method and path ask for: `verb` is predict, classify, regress, metadata or status."""

    verb: str
    spec: ModelSpec


class RESTApp:
    """An ASGI application that answers /v1/models/... from a data plane."""

    def __init__(
        self,
        dataplane: DataPlane,
        *,
        dispatcher: Dispatcher | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        timeout_seconds: float | None = None,
        cors: bool = False,
        metrics: Metrics | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        """`timeout_seconds`: what takes longer is answered 504. `cors`: let pages from other origins call.

        `metrics`: where requests are counted. `pages`: more paths to GET, and what gives their text.
        """
        self._dataplane = dataplane
        self._timeout = timeout_seconds
        self._headers = (JSON, *(_CORS_HEADERS if cors else ()))
        self._cors_headers = list(_CORS_HEADERS) if cors else []
        self._metrics = metrics
        self._pages = dict(pages or {})
        self._dispatcher = dispatcher or Dispatcher()
        self._max_body_bytes = max_body_bytes
        self._work = {
            "predict": self._predict,
            "classify": self._classify,
            "regress": self._regress,
            "metadata": self._metadata,
            "status": self._status,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of ASGI."""
        await serve(self.answer, scope, receive, send, self._max_body_bytes)

    async def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """Answer one whole request; see `serving.asgi.Answering`."""
        if len(body) > self._max_body_bytes:
            return too_large(self._max_body_bytes)
        if target in self._pages:
            return 200, (await self._pages[target]()).encode(), [(b"content-type", CONTENT_TYPE)]
        if target[:4].lower() != "/v1/":
            return 404, _NOT_FOUND, [(b"content-type", b"text/html")]
        if method == "OPTIONS":
            return (200, b"", self._cors_headers) if has_web_origin(headers) else (400, b"", [])
        if body and header(headers, b"content-encoding").lower() == b"gzip":
            body = _unpacked(body)
        status, answer = await self.respond(method, target, body)
        return status, answer, self._headers

    def answer_at_once(self, target: str, headers: Headers, body: bytes) -> Answer | None:
        """Answer a POST whose answer is known to take no time worth a coroutine; None: ask `answer`."""
        size = len(body)
        pace = self._dispatcher.at_once(target, size)
        if pace is None or size > self._max_body_bytes:
            return None
        for name, value in headers:
            if name == b"content-encoding" and value.lower() == b"gzip":
                return None
        status, answer = self._work_here("POST", target, body, pace)
        return status, answer, self._headers

    async def respond(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return the HTTP status and the JSON body for a request.

        `target` is the path as sent: percent-encoded, with the query string if there is one.
        """
        size = len(body)
        pace = self._dispatcher.at_once(target, size)
        if pace is not None:
            return self._work_here(method, target, body, pace)
        try:
            route = _route(method, target)
        except ServingError as error:
            return error.http_status, json_outputs.error(str(error))
        work, started, code = self._work[route.verb], time.perf_counter(), Code.OK
        try:
            answer = await self._dispatcher.run(
                target, size, lambda: work(route.spec, body), timeout=self._timeout
            )
        except ServingError as error:
            code, answer = error.code, json_outputs.error(str(error))
        except Exception:
            log.exception("request_failed", extra={"target": target})
            code, answer = Code.INTERNAL, _INTERNAL
        return self._noted(route, started, code, answer)

    def _work_here(self, method: str, target: str, body: bytes, pace: Pace) -> tuple[int, bytes]:
        """Do what `respond` does, in this thread, without a pause."""
        try:
            route = _route(method, target)
        except ServingError as error:
            return error.http_status, json_outputs.error(str(error))
        started = time.perf_counter()
        try:
            answer = self._work[route.verb](route.spec, body)
        except ServingError as error:
            return self._noted(route, started, error.code, json_outputs.error(str(error)))
        except Exception:
            log.exception("request_failed", extra={"target": target})
            return self._noted(route, started, Code.INTERNAL, _INTERNAL)
        pace.note(time.perf_counter() - started)
        return (200, answer) if self._metrics is None else self._noted(route, started, Code.OK, answer)

    def _noted(self, route: _Route, started: float, code: Code, answer: bytes) -> tuple[int, bytes]:
        if self._metrics is not None:
            name = route.spec.name
            self._metrics.record(name, code.name)
            self._metrics.record_latency(name, route.verb, REST, time.perf_counter() - started)
        return STATUS[code][0], answer

    def _predict(self, spec: ModelSpec, body: bytes) -> bytes:
        parsed = PredictBody(body)
        if parsed.signature_name:
            spec = _with_signature(spec, parsed.signature_name)
        prediction = self._dataplane.predict(spec, parsed.tensors)
        return json_outputs.predictions(prediction.outputs, row_format=parsed.row_format)

    def _classify(self, spec: ModelSpec, body: bytes) -> bytes:
        spec, serialized = _example_request(spec, body)
        result = self._dataplane.classify(spec, serialized).result
        assert isinstance(result, Classes)  # Classify gives nothing else.
        return json_outputs.classifications(result)

    def _regress(self, spec: ModelSpec, body: bytes) -> bytes:
        spec, serialized = _example_request(spec, body)
        result = self._dataplane.regress(spec, serialized).result
        assert isinstance(result, Values)  # Regress gives nothing else.
        return json_outputs.regressions(result)

    def _metadata(self, spec: ModelSpec, body: bytes) -> bytes:
        metadata = self._dataplane.metadata(spec)
        response = messages.metadata_response(metadata, [messages.SIGNATURE_DEF])
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata[messages.SIGNATURE_DEF].Unpack(signatures)
        document = {
            "model_spec": {
                "name": metadata.spec.name,
                "signature_name": "",
                "version": str(metadata.spec.version),
            },
            "metadata": {messages.SIGNATURE_DEF: _as_dict(signatures)},
        }
        return json.dumps(document, indent=1).encode()

    def _status(self, spec: ModelSpec, body: bytes) -> bytes:
        response = messages.status_response(self._dataplane.status(spec))
        return json.dumps(_as_dict(response), indent=1).encode()


def _route(method: str, target: str) -> _Route:
    # Targets are chosen by clients: long ones must not be kept.
    return _kept_route(method, target) if len(target) <= _LONGEST_KEPT else _route_of(method, target)


@lru_cache(maxsize=4096)
def _kept_route(method: str, target: str) -> _Route:
    return _route_of(method, target)


def _route_of(method: str, target: str) -> _Route:
    if method == "POST" and (match := _INFERENCE.fullmatch(target)):
        verb = match[4]
        if verb in ("classify", "regress", "predict"):
            return _Route(verb, _spec(match))
    elif method == "GET" and (match := _STATUS.fullmatch(target)):
        if not match[1]:
            raise InvalidInput("Missing model name in request.")
        return _Route("metadata" if match[4] else "status", _spec(match))
    raise MalformedRequest(method, target)


def _spec(match: re.Match[str]) -> ModelSpec:
    name, version, label = match[1], match[2], match[3]
    return ModelSpec(
        unquote(name),
        None if version is None else _number(version),
        None if label is None else unquote(label),
    )


def _number(version: str) -> int:
    digits = version.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) >= 1 << 63:
        raise InvalidInput(f"Failed to convert version: {version} to numeric.")
    return int(digits)


def _with_signature(spec: ModelSpec, signature_name: str) -> ModelSpec:
    return ModelSpec(spec.name, spec.version, spec.label, signature_name)


def _example_request(spec: ModelSpec, body: bytes) -> tuple[ModelSpec, list[bytes]]:
    document = json_values.parse(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidInput(
            f"JSON Value: {json_values.json_text(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return _with_signature(spec, name), examples.from_json(document)


def _as_dict(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _unpacked(body: bytes) -> bytes:
    """Unpack a gzip body; what cannot be unpacked, or is too large, counts as empty."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(body, MAX_UNPACKED_BYTES)
    except zlib.error:
        return b""
    return unpacked if unpacker.eof else b""
