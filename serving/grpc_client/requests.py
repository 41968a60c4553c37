"""The header block of a request: the same bytes for all calls of a method, so that servers may know it."""

from __future__ import annotations

import math

import hpack

from serving.grpc_transport.headers import ENCODINGS, literal

_POST, _HTTP = b"\x83", b"\x86"
_AUTHORITY, _PATH, _CONTENT_TYPE, _USER_AGENT = 1, 4, 31, 58
"""Where names stand in the static table (RFC 7541, appendix A)."""
_LONGEST = 99_999_999
"""The largest number that a timeout may have."""


def request_block(authority: str, path: str) -> bytes:
    """Return the header block of a method's calls, but for their timeout. No table has to remember it."""
    return b"".join(
        (
            _POST,
            _HTTP,
            _named(_PATH, path.encode("latin-1")),
            _named(_AUTHORITY, authority.encode("latin-1")),
            literal(b"te", b"trailers"),
            _named(_CONTENT_TYPE, b"application/grpc"),
            _named(_USER_AGENT, b"estimator-appliance"),
            literal(b"grpc-accept-encoding", ",".join(ENCODINGS).encode()),
        )
    )


def timeout_header(seconds: float) -> bytes:
    """Return a block that tells the server a timeout.

    It is rounded up to three digits: what is left of a client's 10 s is then still `10000m`, in a block that
    the server knows. Who calls keeps to the exact time.
    """
    millis = max(math.ceil(min(seconds, _LONGEST) * 1e3), 1)
    unit = 10 ** max(len(str(millis)) - 3, 0)
    millis = -(-millis // unit) * unit
    value = b"%dm" % millis if millis <= _LONGEST else b"%dS" % min(millis // 1000, _LONGEST)
    return literal(b"grpc-timeout", value)


def _named(index: int, value: bytes) -> bytes:
    """Return a header whose name is in the static table, as a literal that no table remembers."""
    return (
        bytes(hpack.hpack.encode_integer(index, 4)) + bytes(hpack.hpack.encode_integer(len(value), 7)) + value
    )
