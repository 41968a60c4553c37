"""Coroutines that run where they are made until they first wait, and only then become tasks.

Until then there is no asyncio task, so nothing that asks for the current one may come before the first wait.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T", covariant=True)


class resumed(Coroutine[Any, Any, T]):  # noqa: N801  It is used like a coroutine function.
    """Goes on with a coroutine that has run until `waiting`, as whatever drives this one says; returns what
    it returns.

    Why not a coroutine function that awaits the other: a task that is cancelled before its first step throws
    into what it was given, and of a coroutine that has not begun not one line would run. What the other
    holds, as the count of a request in flight, would be held until the garbage collector found it.
    """

    __slots__ = ("_coroutine", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waiting: Any) -> None:
        self._coroutine, self._waiting = coroutine, waiting

    def send(self, value: Any) -> Any:
        """Go on, until it waits again."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        self._waiting = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End it where it waits."""
        self._coroutine.close()

    def __await__(self) -> resumed[T]:  # type: ignore[override]  # It is its own iterator.
        return self

    def __iter__(self) -> resumed[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)
