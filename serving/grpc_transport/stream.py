"""The state of one stream, which is one call."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from serving.grpc_transport.headers import Head
from serving.grpc_transport.limits import STREAM_WINDOW
from serving.grpc_transport.messages import Message, MessageReader


class Stream:
    """What is known of a stream; the connection acts on it."""

    __slots__ = (
        "closed",
        "deadline",
        "ends_with",
        "handler",
        "head",
        "headers_sent",
        "id",
        "in_window",
        "inbox",
        "out_window",
        "outbox",
        "reader",
        "received",
        "remote_done",
        "seen_sent",
        "sent",
        "since",
        "stalled_since",
        "task",
        "timer",
        "waiter",
        "written",
    )

    def __init__(self, number: int, head: Head, handler: Any, out_window: int, now: float) -> None:
        self.id, self.head, self.handler = number, head, handler
        self.out_window = out_window  # What may be sent; a client may make it negative.
        self.in_window = STREAM_WINDOW  # What may still come.
        self.since = now
        self.deadline = None if head.timeout is None else now + head.timeout
        self.received = self.sent = 0  # Bytes of DATA.
        self.remote_done = False  # The client has sent all.
        self.closed = False  # We have sent all, or one side has given up.
        self.headers_sent = False
        self.reader: MessageReader | None = None
        self.inbox: deque[Message] = deque()  # Messages that no handler has taken.
        self.waiter: asyncio.Future[None] | None = None  # Set when the inbox changes.
        self.outbox: deque[memoryview] | None = None  # What waits for windows.
        self.written: asyncio.Future[None] | None = None  # Set when the outbox is empty.
        self.ends_with: bytes | None = None  # The frame of trailers, once the handler has ended.
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.seen_sent = 0
        self.stalled_since: float | None = None

    @property
    def takes_many(self) -> bool:
        """Whether the client may send more than one message."""
        return bool(self.handler.request_streaming)

    @property
    def takes_one_whole(self) -> bool:
        """Whether the handler takes one message, and nothing of it has come."""
        return self.reader is None and not self.handler.request_streaming

    @property
    def awaited(self) -> bool:
        """Whether the call cannot begin before more has come from the client."""
        return self.task is None and not self.remote_done

    def wake_reader(self) -> None:
        """Let a handler go on that waits for a message, or for their end."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def wake_writer(self) -> None:
        """Let a handler go on that waits until its messages are sent."""
        if self.written is not None and not self.written.done():
            self.written.set_result(None)

    def stalled(self, now: float) -> float:
        """Return for how many seconds answers have waited for room in the client's windows. To be asked at
        regular times."""
        if not self.outbox or self.sent != self.seen_sent:
            self.seen_sent, self.stalled_since = self.sent, None
            return 0.0
        if self.stalled_since is None:
            self.stalled_since = now
        return now - self.stalled_since
