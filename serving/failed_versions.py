"""Versions that failed to load: left alone for a while, then tried again, at growing pauses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

RETRY_SECONDS = (1.0, 60.0)
"""The first and the longest pause before a failed version is tried again."""

Key = tuple[str, int]
"""A model's name and the number of a version."""


@dataclass(frozen=True)
class _Rest:
    """Why a version failed, until when it is left alone (monotonic clock), and for how many seconds."""

    error: str
    until: float
    pause: float


class FailedVersions:
    """Knows of each failed version when it may be tried again. For one thread."""

    def __init__(self) -> None:
        self._rests: dict[Key, _Rest] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._rests

    def add(self, key: Key, error: str, now: float) -> None:
        """Leave a version alone from `now` on, twice as long as after the failure before."""
        first, longest = RETRY_SECONDS
        before = self._rests.get(key)
        pause = min(2 * before.pause, longest) if before else first
        self._rests[key] = _Rest(error, now + pause, pause)

    def may_be_tried(self, key: Key, now: float) -> bool:
        """Return whether the version has not failed, or its pause is over."""
        return key not in self._rests or self._rests[key].until <= now

    def error(self, key: Key) -> str:
        """Return why the version failed the last time; empty when it has not."""
        return self._rests[key].error if key in self._rests else ""

    def forget(self, key: Key) -> None:
        """Take the version for one that has never failed."""
        self._rests.pop(key, None)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Forget all versions but these."""
        self._rests = {key: rest for key, rest in self._rests.items() if key in keys}
