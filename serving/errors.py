"""Everything that can go wrong while serving, as one tree, and the one table of status codes.

    ServingError
    ├── InvalidInput             INVALID_ARGUMENT      the request is wrong, whatever the server holds
    │   ├── UnknownLabel         the model has no such label
    │   ├── UnknownSignature     the model has no such signature
    │   └── MalformedRequest     no such method and path under /v1/
    ├── FailedPrecondition       FAILED_PRECONDITION   right in itself, wrong in the present state
    │   └── UnknownSignatureKey  as UnknownSignature, for gRPC's Predict
    ├── NotFound                 NOT_FOUND
    │   ├── ServableNotFound     no such model, or no such version is available
    │   └── NoVersions           the status of a model or version was asked that the server never saw
    ├── Unsupported              UNIMPLEMENTED
    ├── Overloaded               UNAVAILABLE           too many requests wait already
    ├── TimedOut                 DEADLINE_EXCEEDED     the answer took longer than the server allows
    ├── LoadFailed               UNKNOWN               a version did not become available
    └── ModelFailed              whatever code TensorFlow gave

The texts begin as TensorFlow Serving's do, so that clients which look for them go on working; what to do
comes after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import grpc


class Code(IntEnum):
    """The canonical status codes, numbered as in google.rpc.Code and tensorflow.error.Code."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STATUS: Mapping[Code, tuple[int, grpc.StatusCode]] = {
    Code.OK: (200, grpc.StatusCode.OK),
    Code.CANCELLED: (499, grpc.StatusCode.CANCELLED),
    Code.UNKNOWN: (500, grpc.StatusCode.UNKNOWN),
    Code.INVALID_ARGUMENT: (400, grpc.StatusCode.INVALID_ARGUMENT),
    Code.DEADLINE_EXCEEDED: (504, grpc.StatusCode.DEADLINE_EXCEEDED),
    Code.NOT_FOUND: (404, grpc.StatusCode.NOT_FOUND),
    Code.ALREADY_EXISTS: (409, grpc.StatusCode.ALREADY_EXISTS),
    Code.PERMISSION_DENIED: (403, grpc.StatusCode.PERMISSION_DENIED),
    Code.RESOURCE_EXHAUSTED: (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Code.FAILED_PRECONDITION: (400, grpc.StatusCode.FAILED_PRECONDITION),
    Code.ABORTED: (409, grpc.StatusCode.ABORTED),
    Code.OUT_OF_RANGE: (400, grpc.StatusCode.OUT_OF_RANGE),
    Code.UNIMPLEMENTED: (501, grpc.StatusCode.UNIMPLEMENTED),
    Code.INTERNAL: (500, grpc.StatusCode.INTERNAL),
    Code.UNAVAILABLE: (503, grpc.StatusCode.UNAVAILABLE),
    Code.DATA_LOSS: (500, grpc.StatusCode.DATA_LOSS),
    Code.UNAUTHENTICATED: (401, grpc.StatusCode.UNAUTHENTICATED),
}
"""Code -> (HTTP status, gRPC status), as TensorFlow Serving's model_servers/http_server.cc maps them."""


class ServingError(Exception):
    """What serving refuses or fails to do; `code` says which kind, `str()` says what and what to do."""

    code = Code.UNKNOWN

    @property
    def http_status(self) -> int:
        """The status of a REST answer."""
        return STATUS[self.code][0]

    @property
    def grpc_status(self) -> grpc.StatusCode:
        """The status of a gRPC answer."""
        return STATUS[self.code][1]


class InvalidInput(ServingError):
    """The request is wrong, whatever the server holds."""

    code = Code.INVALID_ARGUMENT


class FailedPrecondition(ServingError):
    """The request would be right in another state of the server."""

    code = Code.FAILED_PRECONDITION


class NotFound(ServingError):
    """What was asked for is not here."""

    code = Code.NOT_FOUND


class Unsupported(ServingError):
    """The protocol allows it; this server cannot do it."""

    code = Code.UNIMPLEMENTED


class Overloaded(ServingError):
    """Too many requests wait already; this one would only make all of them slower."""

    code = Code.UNAVAILABLE


class TimedOut(ServingError):
    """The answer took longer than the server allows."""

    code = Code.DEADLINE_EXCEEDED


class MalformedRequest(InvalidInput):
    """No such method and path under /v1/."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(method, path)
        self.method, self.path = method, path

    def __str__(self) -> str:
        return f"Malformed request: {self.method} {self.path}"


class UnknownLabel(InvalidInput):
    """The model has no such version label."""

    def __init__(self, model: str, label: str, known: Sequence[str] = ()) -> None:
        super().__init__(model, label, tuple(known))
        self.model, self.label, self.known = model, label, tuple(known)

    def __str__(self) -> str:
        return (
            f"Unrecognized servable version label: {self.label}. "
            f"Labels of model '{self.model}': {', '.join(self.known) or 'none'}."
        )


class UnknownSignature(InvalidInput):
    """The model has no such signature. `text` is the beginning that the asking method gives in TensorFlow
    Serving."""

    def __init__(self, text: str, known: Sequence[str] = ()) -> None:
        super().__init__(text, tuple(known))
        self.text, self.known = text, tuple(known)

    def __str__(self) -> str:
        return f"{self.text}. Signatures of this model: {', '.join(sorted(self.known)) or 'none'}."


class UnknownSignatureKey(FailedPrecondition):
    """The model has no such signature, as gRPC's Predict says it."""

    def __init__(self, signature: str, known: Sequence[str] = ()) -> None:
        super().__init__(signature, tuple(known))
        self.signature, self.known = signature, tuple(known)

    def __str__(self) -> str:
        names = ", ".join(sorted(self.known)) or "none"
        return f'Serving signature key "{self.signature}" not found. Signatures of this model: {names}.'


class ServableNotFound(NotFound):
    """The model is not served here, or that version of it is not available.

    `available` is None for a model that is not configured at all.
    """

    def __init__(self, model: str, version: int | None, available: Sequence[int] | None) -> None:
        super().__init__(model, version, None if available is None else tuple(available))
        self.model, self.version, self.available = model, version, available

    def __str__(self) -> str:
        asked = f"Latest({self.model})" if self.version is None else f"Specific({self.model}, {self.version})"
        return f"Servable not found for request: {asked}. {self._remedy()}"

    def _remedy(self) -> str:
        if self.available is None:
            return f"No model '{self.model}' is configured."
        versions = ", ".join(map(str, self.available)) or "none yet"
        return f"Versions of model '{self.model}' available now: {versions}."


class NoVersions(NotFound):
    """The status of a model, or of one version of it, was asked that this server never saw."""

    def __init__(self, model: str, version: int | None = None) -> None:
        super().__init__(model, version)
        self.model, self.version = model, version

    def __str__(self) -> str:
        if self.version is None:
            return f"Could not find any versions of model {self.model}"
        return f"Could not find version {self.version} of model {self.model}"


class LoadFailed(ServingError):
    """Versions did not become available. `failures` maps (model, version) to the loader's error text."""

    def __init__(self, failures: Mapping[tuple[str, int], str]) -> None:
        super().__init__(dict(failures))
        self.failures = dict(failures)

    def __str__(self) -> str:
        listed = "".join(
            f"{{{{name: {model} version: {version}}} due to error: {text}}}, "
            for (model, version), text in self.failures.items()
        )
        return f"{len(self.failures)} model(s) did not become available: {{{listed}}}"


class ModelFailed(ServingError):
    """The model's own graph, or its loader, failed; the code is TensorFlow's."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return self.text
