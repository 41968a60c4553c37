"""How long calls take, to decide where they should run."""

from __future__ import annotations

QUICK_SECONDS = 0.001
"""A signature whose calls take less than this on average runs in the calling thread."""


class Pace:
    """How long calls take: a running figure that falls fast and rises slowly, so that a busy moment is not
    taken for slowness."""

    __slots__ = ("calls", "quick", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.quick = False
        """Whether calls are known to be short enough to run where they are asked for."""

    def note(self, seconds: float) -> None:
        """Count one call. The first is not counted: it pays for the graph's optimisation."""
        self.calls += 1
        if self.calls <= 2:
            self.seconds = seconds
        else:
            self.seconds += (seconds - self.seconds) * (0.5 if seconds < self.seconds else 0.05)
        self.quick = self.calls > 1 and self.seconds < QUICK_SECONDS

    def within(self, seconds: float) -> bool:
        """Whether calls are known to take less than this."""
        return self.calls > 1 and self.seconds < seconds
