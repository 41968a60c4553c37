"""What can go wrong when one asks the appliance for something.

ClientError
  InvalidBundle        the folder cannot be made into a bundle (found here, before anything is sent)
  ConnectionFailed     nobody answers at the address, or the connection broke
  InvalidRequest       400, 422: the request is not what the server takes; the message says what is
  Unauthorized         401, 403: no token, or the wrong one
  NotFound             404: no such job, model, version, label or signature
  Conflict             409: the state does not allow it
    GateRefused          a gate refused the promotion; the message says which check and by how much
    LoadFailed           the version was promoted but would not load; the promotion is undone
  TooLarge             413: more bytes than the server takes
  Overloaded           429, 503: try again later
  ServerFailed         any other 5xx: a fault of the server, its log says more
"""

from __future__ import annotations


class ClientError(Exception):
    """Something asked of the appliance did not come about; `str()` is the reason, as the server gave it."""

    def __init__(self, message: str, code: str = "", status: int = 0) -> None:
        """Take the message for people, the server's code for programs, and the HTTP status (0: none)."""
        super().__init__(message, code, status)
        self.message, self.code, self.status = message, code, status

    def __str__(self) -> str:
        return self.message


class InvalidBundle(ClientError):
    """The folder around the file cannot be sent."""


class ConnectionFailed(ClientError):
    """No answer came from the server."""


class InvalidRequest(ClientError):
    """The server does not take this request."""


class Unauthorized(ClientError):
    """The token is missing, wrong, or does not allow this."""


class NotFound(ClientError):
    """The job, model, version, label or signature does not exist."""


class Conflict(ClientError):
    """The present state does not allow this."""


class GateRefused(Conflict):
    """A gate refused the promotion."""


class LoadFailed(Conflict):
    """The promoted version would not load, so the promotion was undone."""


class TooLarge(ClientError):
    """The request has more bytes than the server takes."""


class Overloaded(ClientError):
    """The server is too busy, or not ready yet."""


class ServerFailed(ClientError):
    """The server failed; that is its fault, not the caller's."""


_BY_CODE: dict[str, type[ClientError]] = {"gate_refused": GateRefused, "load_failed": LoadFailed}
_BY_STATUS: dict[int, type[ClientError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: Overloaded,
    503: Overloaded,
}


def error_for(status: int, code: str, message: str) -> ClientError:
    """Return the error that stands for an HTTP answer of this status, code and message."""
    otherwise = ServerFailed if status >= 500 else InvalidRequest
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, otherwise)
    return kind(message, code, status)
