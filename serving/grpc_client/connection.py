"""One connection of a client: how it begins, what comes from its server beside `Link`, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from serving.grpc_client.calls import Call, Calls
from serving.grpc_client.outcomes import error_name
from serving.grpc_client.patience import Finding, Pulse
from serving.grpc_client.replies import reply_of
from serving.grpc_transport import frames
from serving.grpc_transport.frames import ConnectionFault, ErrorCode, StreamFault
from serving.grpc_transport.headers import BlockReader
from serving.grpc_transport.limits import (
    CONNECTION_WINDOW,
    LINGER_SECONDS,
    MAX_FRAME_SIZE,
    MAX_HEADER_BYTES,
    STREAM_WINDOW,
)
from serving.grpc_transport.link import Link

log = logging.getLogger(__name__)

_LONGEST_BLOCK = 1 << 20
"""Longest header block that is taken. Less is asked for, but one call's long status must not end others."""
_SETTINGS = {
    frames.ENABLE_PUSH: 0,
    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    frames.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
    frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
}
_HELLO = (
    frames.PREFACE
    + frames.settings_frame(_SETTINGS)
    + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
)
_PING = frames.frame(frames.PING, 0, 0, b"anybody?")


class Host(Protocol):
    """What a connection needs of its channel."""

    target: str

    def again(self, call: Call, text: str) -> None:
        """Take a call that a connection will not serve; `text`: what to say if no other does."""

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""


class Connection(Link):
    """The client's end of a connection. `ready` is set when the server has said what it grants."""

    def __init__(self, host: Host) -> None:
        super().__init__(_LONGEST_BLOCK)
        self._host = host
        self._streams: Calls
        self._heads = BlockReader(reply_of, _LONGEST_BLOCK)
        self._pulse = Pulse()
        self._why = ""  # What the server has said, or done, that ended the connection.
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the server."""
        super().connection_made(transport)
        self._streams = Calls(self._sender, self._allowance, self._host.again, self._when_empty)
        self._transport.write(_HELLO)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell all calls."""
        self._over_since = self._over_since or asyncio.get_running_loop().time()
        self._lost(self._why or (str(error) if error else "the server has closed it"))
        self._host.closed(self)

    @property
    def takes_calls(self) -> bool:
        """Whether a call may begin here."""
        return self._over_since is None and not self._streams.leaving

    def begin(self, call: Call) -> None:
        """Send a call. The connection has to be ready, and to take calls."""
        self._streams.begin(call)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        self._pulse.heard = True
        super().data_received(data)
        if not self.ready.done() and self._settled:
            self.ready.set_result(None)

    def _begun(self, number: int) -> bool:
        return self._streams.begun(number)

    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        self._check_begun("HEADERS", number)
        try:
            reply = self._heads.read(block)
        except StreamFault as fault:
            self._streams.end(number, fault.code)
            return
        self._streams.take_reply(number, reply, bool(flags & frames.END_STREAM))

    def _leaves(self, last: int, code: int, text: bytes) -> None:
        said = text.decode("utf-8", "replace")[:200]
        reason = f"{error_name(code)}: {said}" if said else error_name(code)
        self._why = f"the server is leaving ({reason})"
        if not self.ready.done():
            self.ready.set_result(None)  # It was there, and there may be another at once.
        self._streams.take_goaway(last, self._text(self._why))

    # How it ends.

    def check(self, now: float) -> None:
        """See whether the server is there. To be called once a second."""
        if self._over_since is not None:
            if now - self._over_since > LINGER_SECONDS:
                self._transport.abort()
            return
        self._allowance.refill()
        finding = self._pulse.look(now, bool(self._streams.open), self._streams.answers)
        if finding is Finding.ASK:
            self._sender.control(_PING)
        elif finding is Finding.GONE:
            self._why = "the server does not answer a PING"
            self._transport.abort()
            self._lost(self._why)

    def leave(self) -> None:
        """Cancel all calls, and end the connection."""
        if self._over_since is None:
            self._streams.cancel_all()
        self._over("")

    def abort(self) -> None:
        """Close, whatever is still to be sent."""
        self._transport.abort()

    def _fail(self, fault: ConnectionFault) -> None:
        log.warning("grpc_server_failed", extra={"server": self._host.target, "fault": str(fault)})
        self._over(f"the server breaks a rule of HTTP/2 ({fault})", fault.code, fault.text)

    def _when_empty(self) -> None:
        self._over("")

    def _over(self, why: str, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Say goodbye and close; calls that there still are have failed."""
        if self._over_since is not None:
            return
        self._why = self._why or why
        self._over_since = asyncio.get_running_loop().time()
        self._transport.write(frames.goaway(0, code, text))
        self._transport.close()
        self._lost(self._why)

    def _lost(self, why: str) -> None:
        self._over_since = self._over_since or asyncio.get_running_loop().time()
        self._streams.end_all(self._text(why))
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
            self.ready.exception()  # Perhaps nobody waits for it any more; that is no error.

    def _text(self, why: str) -> str:
        return f"The connection to {self._host.target} was lost: {why}."
