"""Counts requests on their way to a version, so that it is not unloaded under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counts the requests on their way to each version; written by the event loop only."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def request(self, model: str, version: int) -> Iterator[None]:
        """Count a request for as long as the block runs."""
        key = model, version
        self._counts[key] += 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    def versions(self) -> tuple[tuple[str, int], ...]:
        """Return what requests are on their way to. Any thread may ask."""
        return tuple(self._counts)

    def total(self) -> int:
        """Return how many requests are on their way."""
        return sum(self._counts.copy().values())
