"""Coroutines that become tasks when they first wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from serving.coroutines import resumed

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


async def twice(first: asyncio.Future[int], second: asyncio.Future[int], ended: list[str]) -> int:
    """Wait for two numbers, and note how that ends."""
    try:
        return await first + await second
    except BaseException as error:
        ended.append(type(error).__name__)
        raise
    finally:
        ended.append("finally")


def begun(coroutine: Coroutine[Any, Any, int]) -> Coroutine[Any, Any, int]:
    return resumed(coroutine, coroutine.send(None))


@LOOPS
def test_it_goes_on_as_a_task_or_within_one(run: Callable[..., None]) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        for in_task in (True, False):
            first, second = loop.create_future(), loop.create_future()
            coroutine = begun(twice(first, second, []))
            loop.call_soon(first.set_result, 1)
            loop.call_soon(loop.call_soon, second.set_result, 2)
            assert await (asyncio.create_task(coroutine) if in_task else coroutine) == 3
        first = loop.create_future()
        task = asyncio.create_task(begun(twice(first, loop.create_future(), [])))
        first.set_exception(OSError("no"))
        with pytest.raises(OSError, match="no"):
            await task

    run(test())


@LOOPS
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_cancelled_task_cancels_it_however_far_it_is(run: Callable[..., None], steps: int) -> None:
    """Even before the task's first step, and at once, not when the garbage collector comes."""

    async def test() -> None:
        loop, ended = asyncio.get_running_loop(), list[str]()
        first, second = loop.create_future(), loop.create_future()
        task = asyncio.create_task(begun(twice(first, second, ended)))
        if steps:
            await asyncio.sleep(0)
        if steps == 2:
            first.set_result(1)
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["CancelledError", "finally"]

    gc.disable()
    try:
        run(test())
    finally:
        gc.enable()


def test_closed_it_ends_where_it_waits() -> None:
    async def test() -> None:
        loop, ended = asyncio.get_running_loop(), list[str]()
        begun(twice(loop.create_future(), loop.create_future(), ended)).close()
        assert ended == ["GeneratorExit", "finally"]

    asyncio.run(test())
