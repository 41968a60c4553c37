"""What a server grants its clients, and how long it waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

STREAM_WINDOW = 1 << 22
"""Bytes of one request that may be under way; a prediction seldom needs more."""
CONNECTION_WINDOW = 1 << 24
MAX_FRAME_SIZE = 1 << 20
"""Largest frame that is asked for: a large tensor then comes in few."""
MAX_HEADER_BYTES = 1 << 15
"""Longest header block, and largest list of headers that one may stand for."""
MAX_INFLATED = 1 << 28
"""Bytes that a compressed message may grow to when messages may have any size."""
SILENT_SECONDS = 75.0
"""How long a new connection may say nothing, and a client may leave an answer without room."""
READ_SECONDS = 20.0
"""How long a request, or one frame, may take to arrive."""
BYTES_PER_SECOND = 500
"""A request gets a second more for each so many of its bytes, as over REST."""
LINGER_SECONDS = 2.0
"""How long a client may take to close a connection that has ended."""
ALLOWANCE = 10_000
"""What a client may ask for in a second that is no request: see `Connection.charge`."""
MAX_UNREAD = 10_000
"""Messages of a stream that may wait for its handler."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the channel arguments of gRPC set. Sizes are in bytes, -1 is any."""

    max_receive: int = -1
    max_send: int = -1
    max_streams: int = 1000
    """Calls on one connection at the same time."""


_ARGUMENTS = {
    "grpc.max_receive_message_length": "max_receive",
    "grpc.max_send_message_length": "max_send",
    "grpc.max_concurrent_streams": "max_streams",
}
_ELSEWHERE = ("grpc.so_reuseport",)
"""Arguments that are honoured where the socket is made."""


def limits_from(arguments: Iterable[tuple[str, Any]]) -> Limits | None:
    """Return what gRPC's channel arguments ask for; None: one of them asks for something else."""
    found: dict[str, int] = {}
    for name, value in arguments:
        if name in _ELSEWHERE:
            continue
        if name not in _ARGUMENTS or not isinstance(value, int) or value < -1:
            return None
        found[_ARGUMENTS[name]] = value
    if found.get("max_streams", 1) < 1:
        return None
    return Limits(**found)
