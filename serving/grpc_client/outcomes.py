"""What becomes of a call that has no answer: the status of gRPC for what a server, HTTP/2 or HTTP says."""

from __future__ import annotations

from collections.abc import Mapping

from grpc import StatusCode

from serving.grpc_client.replies import Reply
from serving.grpc_transport.frames import ErrorCode
from serving.grpc_transport.headers import Metadata

_BY_NUMBER: Mapping[int, StatusCode] = {code.value[0]: code for code in StatusCode}
_BY_HTTP: Mapping[int, StatusCode] = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}
"""gRPC's "HTTP to gRPC Status Code Mapping"; others are UNKNOWN."""
_BY_RESET: Mapping[int, StatusCode] = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}
"""gRPC over HTTP/2, "Errors"; others are INTERNAL."""


_ERRORS: Mapping[int, str] = {int(code): code.name for code in ErrorCode}


class CallFailed(Exception):
    """A call has no answer. What it ended with: `code`, `details` and trailing `metadata`."""

    def __init__(self, code: StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(code, details, metadata)
        self.code, self.details, self.metadata = code, details, metadata

    def __str__(self) -> str:
        return f"{self.code.name}: {self.details}"


def error_name(code: int) -> str:
    """Return an error code of HTTP/2 in words."""
    return _ERRORS.get(code, f"error {code}")


def after_reset(code: int) -> CallFailed:
    """Return how a call ends that the server resets."""
    return CallFailed(
        _BY_RESET.get(code, StatusCode.INTERNAL), f"The server has reset the call: {error_name(code)}."
    )


def unavailable(text: str) -> CallFailed:
    """Return how a call ends that no server has answered."""
    return CallFailed(StatusCode.UNAVAILABLE, text)


def cancelled() -> CallFailed:
    """Return how a call ends whose channel is closed."""
    return CallFailed(StatusCode.CANCELLED, "The channel is closed.")


def expired() -> CallFailed:
    """Return how a call ends that has taken too long."""
    return CallFailed(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def internal(text: str) -> CallFailed:
    """Return how a call ends whose answer makes no sense."""
    return CallFailed(StatusCode.INTERNAL, text)


def after_headers(reply: Reply) -> CallFailed | None:
    """Return how a call ends after its headers alone; None: it goes on."""
    if reply.http == 200 and reply.content_type.startswith("application/grpc"):
        return None
    if reply.status is not None:
        return after_trailers(reply)
    if reply.http == 200:
        return CallFailed(StatusCode.UNKNOWN, f"The server answers with content-type {reply.content_type!r}.")
    return CallFailed(
        _BY_HTTP.get(reply.http or 0, StatusCode.UNKNOWN),
        f"The server answers with HTTP status {reply.http}.",
    )


def after_trailers(reply: Reply) -> CallFailed | None:
    """Return how a call ends after its trailers; None: well."""
    if reply.flaw:
        return internal(reply.flaw)
    if reply.status == 0:
        return None
    if reply.status is None:
        return CallFailed(
            StatusCode.UNKNOWN, "The server has ended the call without a status.", reply.metadata
        )
    code = _BY_NUMBER.get(reply.status)
    if code is None:
        text = f"{reply.text} (the server's status is no code of gRPC)".lstrip()
        return CallFailed(StatusCode.UNKNOWN, text, reply.metadata)
    return CallFailed(code, reply.text, reply.metadata)
