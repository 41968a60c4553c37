"""Waiting for what may never answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what `call` returns, or raise what it raises.

    It runs in a thread of its own, which goes on for nothing when the time is over: a socket, or a disk on a
    network, cannot be told to give up.

    Raises:
        TimeoutError: there is no answer within so many seconds.
    """
    answer: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put((call(), None))
        except BaseException as error:  # noqa: BLE001  # it is raised again where it is waited for
            answer.put((None, error))

    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        value, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
