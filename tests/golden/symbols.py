"""Records every public symbol of tf.estimator with its signature: run under TensorFlow 2.15.

`python -m tests.golden.symbols > tests/golden/symbols.json`
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any


def public(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each public symbol below a module, by its dotted name."""
    for name in sorted(dir(module)):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from public(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def described(symbol: Any) -> dict[str, Any]:
    """Return the kind of a symbol, its parameters with plain defaults, and its public members."""
    parameters: dict[str, Any] = {}
    for parameter in inspect.signature(symbol).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            parameters[parameter.name] = "required"
        elif parameter.default is None or isinstance(parameter.default, bool | int | float | str):
            parameters[parameter.name] = {"default": parameter.default}
        else:
            parameters[parameter.name] = "optional"
    if not inspect.isclass(symbol):
        return {"kind": "function", "parameters": parameters}
    members = [name for name in dir(symbol) if not name.startswith("_") and not hasattr(tuple, name)]
    return {"kind": "class", "parameters": parameters, "members": members}


if __name__ == "__main__":
    import tensorflow as tf

    print(json.dumps({name: described(value) for name, value in public(tf.estimator)}, indent=1))
