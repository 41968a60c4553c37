"""Waiting for a condition, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.05
"""A look may be a request to a server: a hundred a second would take the time that it is waited for."""


def wait_until(
    condition: Callable[[], T], what: str | Callable[[], str] = "", seconds: float = DEADLINE_SECONDS
) -> T:
    """Return the condition's first true value.

    Args:
        condition: asked again and again.
        what: is waited for; a function is called when it did not come.
        seconds: how long to wait.

    Raises:
        AssertionError: the time is over.
    """
    deadline = time.monotonic() + seconds
    pause = LOOK_AGAIN_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        # Other processes, files and databases wake nobody who waits for them: all that is left is to look.
        time.sleep(pause)
        pause = min(1.2 * pause, LONGEST_PAUSE_SECONDS)
    return found
