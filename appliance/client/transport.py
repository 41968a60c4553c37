"""HTTP as the client speaks it: one connection pool, bearer token, errors of `appliance.client.errors`."""

from __future__ import annotations

import getpass
import ipaddress
import json
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from appliance.client.errors import ConnectionFailed, InvalidRequest, ServerFailed, error_for

if TYPE_CHECKING:
    import httpx


def segment(text: object) -> str:
    """Return `text`, the name or number of something, as one percent-encoded segment of a path.

    Raises:
        InvalidRequest: nothing can have this name: it would lead to another path.
    """
    if str(text) in {"", ".", ".."} or "/" in str(text):
        raise InvalidRequest(
            f"Cannot ask for {str(text)!r}: it is the name of nothing. "
            "Names consist of letters, digits, '_', '.' and '-'.",
            "invalid_name",
        )
    return quote(str(text), safe="")


def json_text(value: Any) -> str:
    """Return `value` as JSON. Raises InvalidRequest when it holds what JSON has no form for."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"Cannot send {value!r:.200} as JSON: {error}. "
            "Give numbers, strings, booleans, None, lists, and mappings by strings.",
            "not_json",
        ) from error


def check_header(name: str, value: str) -> str:
    """Return `value`. Raises InvalidRequest, which does not show it, when no header can carry it."""
    if not value.isprintable():
        raise InvalidRequest(
            f"Cannot send the {name}: it holds a line end or another control character.", "invalid_header"
        )
    return value


def check_url(url: str) -> str:
    """Return the server's address. Raises InvalidRequest when it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port that is no number, or half an IPv6 address.
        usable = False
    if not usable or any(character.isspace() for character in url):
        raise InvalidRequest(
            f"Cannot use {url!r} as the server's address: give it as http://host:port.", "invalid_url"
        )
    return url.rstrip("/")


def default_actor() -> str:
    """Return who acts, as `user@host`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class Sender(Protocol):
    """What a client sends its requests through."""

    url: str

    def get(self, path: str, *, timeout_seconds: float | None = None, **query: Any) -> Any:
        """Return the JSON at `path`."""

    def send(self, method: str, path: str, body: Any = None, *, timeout_seconds: float | None = None) -> Any:
        """Send `body` as JSON and return the JSON of the answer."""

    def upload(self, path: str, spec: Mapping[str, Any], bundle: bytes, *, timeout_seconds: float) -> Any:
        """Send a form and return the JSON of the answer."""

    def close(self) -> None:
        """Let go of what is held."""


class Transport:
    """Requests to one server. Safe to share between threads."""

    def __init__(self, url: str, token: str, timeout_seconds: float, actor: str) -> None:
        """Take where the server is; nothing is sent yet."""
        self.url = check_url(url)
        self._token, self._actor = check_header("token", token), check_header("actor", actor)
        self._timeout_seconds = timeout_seconds
        self._client: httpx.Client | None = None
        self._opening = threading.Lock()

    def get(self, path: str, *, timeout_seconds: float | None = None, **query: Any) -> Any:
        """Return the JSON at `path`; queries that are None are left out."""
        return self._send(
            "GET", path, timeout_seconds, params={k: v for k, v in query.items() if v is not None}
        )

    def send(self, method: str, path: str, body: Any = None, *, timeout_seconds: float | None = None) -> Any:
        """Send `body` as JSON and return the JSON of the answer."""
        if body is None:
            return self._send(method, path, timeout_seconds)
        content = json_text(body).encode()
        return self._send(
            method, path, timeout_seconds, content=content, headers={"Content-Type": "application/json"}
        )

    def upload(self, path: str, spec: Mapping[str, Any], bundle: bytes, *, timeout_seconds: float) -> Any:
        """Send a form of `spec` (JSON) and `bundle` (a tar.gz) and return the JSON of the answer."""
        files = {"bundle": ("bundle.tar.gz", bundle, "application/gzip")}
        return self._send("POST", path, timeout_seconds, data={"spec": json_text(spec)}, files=files)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _send(self, method: str, path: str, timeout_seconds: float | None, **request: Any) -> Any:
        import httpx

        request["timeout"] = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            answer = self._connection().request(method, self.url + path, **request)
        except httpx.TimeoutException as error:
            raise ConnectionFailed(
                f"No answer from {self.url} within {request['timeout']:g} s ({type(error).__name__}).",
                "timeout",
            ) from error
        except httpx.TransportError as error:
            raise ConnectionFailed(
                f"Cannot reach the appliance at {self.url}: {error}. "
                "Start it with `appliance up`, or set APPLIANCE_URL.",
                "unreachable",
            ) from error
        if answer.is_success:
            return _body_of(answer)
        raise error_for(answer.status_code, *_reason_of(answer))

    def _connection(self) -> httpx.Client:
        with self._opening:
            if self._client is None:
                self._client = self._open()
            return self._client

    def _open(self) -> httpx.Client:
        import httpx

        # Header values are bytes: names and tokens need not be ASCII.
        headers = {b"Appliance-Actor": self._actor.encode()}
        if self._token:
            headers[b"Authorization"] = b"Bearer " + self._token.encode()
        # A proxy of the environment can never reach this machine's own loopback.
        return httpx.Client(headers=headers, trust_env=not _is_loopback(urlsplit(self.url).hostname or ""))


def _body_of(answer: httpx.Response) -> Any:
    if not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        raise ServerFailed(
            f"The server at {answer.url} did not answer with JSON: is it the appliance's?",
            "not_json",
            answer.status_code,
        ) from error


def _reason_of(answer: httpx.Response) -> tuple[str, str]:
    """Return code and message: the control plane sends both, the prediction protocol only a text."""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return (
            "",
            f"{answer.request.method} {answer.url} answered {answer.status_code} {answer.reason_phrase}.",
        )
    if isinstance(error, Mapping):
        return str(error.get("code", "")), str(error.get("message", ""))
    return "", str(error)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
