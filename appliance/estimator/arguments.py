"""Which arguments a user's function takes, so that it is given only those it names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names by which `function` may be given arguments, in order.

    Functions, bound methods (without `self`), callable objects and partials are understood; what a partial
    has already bound is left out. `*args` and `**kwargs` name nothing.

    Raises:
        TypeError: `function` is not callable.
    """
    if isinstance(function, functools.partial):
        inner = argument_names(function.func)[len(function.args) :]
        return tuple(name for name in inner if name not in function.keywords)
    parameters = inspect.signature(function).parameters.values()
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind not in unnamed)


def call_with_known(function: Callable[..., Any], *args: Any, optional: Mapping[str, Any]) -> Any:
    """Call `function(*args)` and add, by name, those of `optional` that it declares."""
    names = argument_names(function)
    return function(*args, **{name: value for name, value in optional.items() if name in names})
