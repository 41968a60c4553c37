"""How much the other side may ask for beside requests, and for how long one may keep the server waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from serving.grpc_transport.frames import ConnectionFault, ErrorCode, FrameReader
from serving.grpc_transport.limits import (
    ALLOWANCE,
    BYTES_PER_SECOND,
    READ_SECONDS,
    SILENT_SECONDS,
)

if TYPE_CHECKING:
    from serving.grpc_transport.stream import Stream


class Allowance:
    """Counts frames that are no requests: a client may send so many in a second, and more for each request.

    A client that needs more is up to no good: pings, settings, empty frames, or streams that it opens and
    resets without end cost us more than it.
    """

    def __init__(self) -> None:
        self._left = ALLOWANCE

    def refill(self) -> None:
        """Begin another second."""
        self._left = ALLOWANCE

    def grow(self, by: int = 4) -> None:
        """Count a request, which gives the other side cause for so many frames."""
        self._left += by

    def charge(self, price: int) -> None:
        """Count a frame.

        Raises:
            ConnectionFault: the allowance is used up.
        """
        self._left -= price
        if self._left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames beside requests")


class FrameClock:
    """Knows for how long the rest of a frame, or of a header block, has been missing. To be asked at regular
    times."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._cuts = 0

    def seconds(self, reader: FrameReader, in_block: bool, now: float) -> float:
        """Return for how long it has been the same one."""
        if not in_block and (not reader.waits or reader.cuts != self._cuts):
            self._since = None
        self._cuts = reader.cuts
        if self._since is None and (in_block or reader.waits):
            self._since = now
        return 0.0 if self._since is None else now - self._since


def overdue(streams: Iterable[Stream], now: float) -> list[Stream]:
    """Return the streams whose request has not arrived in time, or whose answer its client does not take."""
    return [
        stream
        for stream in streams
        if stream.stalled(now) > SILENT_SECONDS
        or (
            stream.awaited
            and not stream.takes_many
            and now - stream.since > READ_SECONDS + stream.received / BYTES_PER_SECOND
        )
    ]
