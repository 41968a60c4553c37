"""Keeps the garbage collector from what `import tensorflow` makes.

That is four hundred thousand objects that live as long as the process. While they are made the collector goes
through them again and again, later at each full collection, and once more when the process ends, to find
nothing: a third of the CPU time of a process that does little else. Importing this module halts the
collector during that import, and lets it leave alone for ever what is alive then (`gc.freeze`); what is made
later is collected as always. It has no effect once TensorFlow has been imported, or where somebody has
switched the collector off.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # As in keras_on_demand: the base class takes long to import.
    from collections.abc import Callable
    from importlib.abc import MetaPathFinder
else:
    MetaPathFinder = object


class _TensorFlowFinder(MetaPathFinder):
    """Finds TensorFlow where it is, and lets it be loaded without the collector."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            # Only this method: others ask the loader for files and sources.
            loader: Any = found.loader
            loader.exec_module = _without_collector(loader.exec_module)
        return found


def _without_collector(execute: Callable[[Any], None]) -> Callable[[Any], None]:
    def execute_and_freeze(module: Any) -> None:
        if not gc.isenabled():
            execute(module)
            return
        # What is garbage already must not be kept; of a young process this is a matter of milliseconds.
        gc.collect()
        gc.disable()
        try:
            execute(module)
            gc.freeze()
        finally:
            gc.enable()

    return execute_and_freeze


sys.meta_path.insert(0, _TensorFlowFinder())
