"""The token check: one bearer token for both protocols, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from serving.errors import Code, ServingError


class Unauthenticated(ServingError):
    """The request carries no token, or a wrong one."""

    code = Code.UNAUTHENTICATED

    def __str__(self) -> str:
        return (
            "This gateway asks for a bearer token. Send it as the HTTP header 'Authorization: Bearer TOKEN', "
            "or for gRPC as the metadata 'authorization: Bearer TOKEN'."
        )


class Access:
    """Knows the token; with an empty one everyone is let in."""

    def __init__(self, token: str = "") -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Check the headers of an ASGI scope.

        Raises:
            Unauthenticated: none of them is the right authorization.
        """
        if not self.admits(headers):
            raise Unauthenticated

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether one of the headers is the right authorization, or none is asked for."""
        return not self._expected or any(
            name == b"authorization" and self._matches(value) for name, value in headers
        )

    def check_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Check the metadata of a gRPC call.

        Raises:
            Unauthenticated: none of it is the right authorization.
        """
        if self._expected:
            self.check(
                (name.encode(), value if isinstance(value, bytes) else value.encode())
                for name, value in metadata
            )

    def _matches(self, value: bytes) -> bool:
        return hmac.compare_digest(value, self._expected)
