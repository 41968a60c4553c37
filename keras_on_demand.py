"""Lets `import tensorflow` leave Keras until somebody uses it.

As its last act TensorFlow imports Keras, so that `tf.saved_model.load` knows the optimizers in SavedModels of
Keras; and Keras imports pandas and scikit-learn where they are installed. That can be two fifths of the time
a process takes to start, and most processes here never use Keras. TensorFlow is content with an ImportError
there, and imports Keras when `tf.keras` is first used. Importing this module sees to both; it has no effect
once TensorFlow has been imported.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # The base classes alone would cost the command a tenth of its time to start.
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object


class _NotYet(Loader):
    """Refuses to load."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system, which makes an empty one."""

    def exec_module(self, module: Any) -> None:
        raise ImportError("Keras is imported when it is first used.", name=module.__name__)


class _KerasFinder(MetaPathFinder):
    """Finds Keras where TensorFlow looks for its folder, but does not let it be loaded from there."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "keras" or not _asked_by_tensorflow():
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None:
            found.loader = _NotYet()
        return found


def _asked_by_tensorflow() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "tensorflow":
            return True
        frame = frame.f_back
    return False


sys.meta_path.insert(0, _KerasFinder())
