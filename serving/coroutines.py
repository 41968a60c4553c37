"""Coroutines that run where they are made until they first wait, and only then become tasks.

Until then there is no asyncio task, so nothing that asks for the current one may come before the first wait.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], waiting: Any) -> Generator[Any, Any, T]:
    while True:
        try:
            value = yield waiting
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  It belongs to the coroutine.
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            waiting = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
        except StopIteration as done:
            result: T = done.value
            return result


async def resumed(coroutine: Coroutine[Any, Any, T], waiting: Any) -> T:
    """Go on with a coroutine that has run until `waiting`, as whatever drives this one says; return what it
    returns."""
    return await _resume(coroutine, waiting)
