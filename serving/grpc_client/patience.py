"""When to try again, and when to ask whether the other side is there: decided here, done elsewhere."""

from __future__ import annotations

import random
from enum import Enum

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
_GROWTH = 1.6
_JITTER = 0.2
CONNECT_SECONDS = 2.0
"""How long a connection may take to be made, and its server to say what it grants."""
SILENT_SECONDS = 20.0
"""How long a server with calls may say nothing before it is asked whether it is there; and may then take."""
PING_AGAIN_SECONDS = 310.0
"""Servers of gRPC cut off who asks twice in five minutes while they have nothing to say."""


class Backoff:
    """How long a server that cannot be reached is left alone: longer each time, up to a second."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._until = 0.0
        self.failure = ""
        """Why the last attempt has failed."""

    def failed(self, why: str, now: float) -> None:
        """Note an attempt that has failed."""
        self.failure = why
        self._until = now + self._pause * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._pause = min(_GROWTH * self._pause, LONGEST_PAUSE_SECONDS)

    def succeeded(self) -> None:
        """Note a connection."""
        self._pause = FIRST_PAUSE_SECONDS
        self._until = 0.0

    def over(self, now: float) -> bool:
        """Whether it is time for another attempt."""
        return now >= self._until


class Finding(Enum):
    """What to do about a server's silence."""

    NOTHING = "nothing"
    ASK = "ask"
    GONE = "gone"


class Pulse:
    """Watches for a server that is gone without a word, as a machine that has lost its power."""

    def __init__(self) -> None:
        self.heard = True
        """To be set whenever something has come."""
        self._since = 0.0
        self._asked: float | None = None
        self._ask_after = 0.0
        self._answers = 0

    def look(self, now: float, busy: bool, answers: int) -> Finding:
        """Decide. To be asked at regular times.

        Args:
            now: in seconds.
            busy: whether calls wait for the server.
            answers: how many have ever been begun by it; such a server may be asked again.
        """
        if answers != self._answers:
            self._answers, self._ask_after = answers, 0.0
        if self.heard or not busy:
            self.heard, self._since, self._asked = False, now, None
        elif self._asked is not None:
            if now - self._asked >= SILENT_SECONDS:
                return Finding.GONE
        elif now - self._since >= SILENT_SECONDS and now >= self._ask_after:
            self._asked, self._ask_after = now, now + PING_AGAIN_SECONDS
            return Finding.ASK
        return Finding.NOTHING
