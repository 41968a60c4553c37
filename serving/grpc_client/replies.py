"""The header blocks of an answer: its headers, its trailers, or both in one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from serving.grpc_transport.frames import ErrorCode, StreamFault
from serving.grpc_transport.headers import ENCODINGS, Fields, IllegalBase64, Metadata, entry, sorted_out

_PSEUDO = (b":status",)
_OF_GRPC = (
    b"content-type",
    b"grpc-status",
    b"grpc-message",
    b"grpc-encoding",
    b"grpc-accept-encoding",
)
"""What is no metadata of the server's."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a block says.

    `http`: the HTTP status; None: there is none, so these are trailers. `status`: that of gRPC; None: there
    is none; -1: it is no number. `flaw`: why it cannot be taken for what it says.
    """

    http: int | None = None
    content_type: str = ""
    encoding: str = ENCODINGS[0]
    status: int | None = None
    text: str = ""
    metadata: Metadata = ()
    flaw: str = ""

    @property
    def informational(self) -> bool:
        """Whether the headers of the answer are still to come."""
        return self.http is not None and 100 <= self.http < 200


def reply_of(fields: Fields) -> Reply:
    """Return what the headers or trailers of an answer say.

    Raises:
        StreamFault: they are not allowed in HTTP/2.
    """
    special, own = sorted_out(fields, _PSEUDO)
    http = special.get(b":status")
    if http is not None and not (len(http) == 3 and http.isdigit()):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, ":status is no number")
    by_name = dict(own)
    flaw = ""
    metadata: Metadata = ()
    try:
        metadata = tuple(entry(name, value) for name, value in own if name not in _OF_GRPC)
    except IllegalBase64 as error:
        flaw = str(error)
    return Reply(
        http=None if http is None else int(http),
        content_type=by_name.get(b"content-type", b"").decode("latin-1"),
        encoding=by_name.get(b"grpc-encoding", b"identity").decode("latin-1"),
        status=_number(by_name.get(b"grpc-status")),
        text=unquote_to_bytes(by_name.get(b"grpc-message", b"")).decode("utf-8", "replace"),
        metadata=metadata,
        flaw=flaw,
    )


def _number(value: bytes | None) -> int | None:
    if value is None:
        return None
    return int(value) if value.isdigit() and len(value) < 10 else -1
