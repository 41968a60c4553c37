"""The user's file: loading it, calling its function, showing its errors without the appliance's frames."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from appliance.bundle import BundleError
from registry import RegistryError

__all__ = ["EvaluationFailed", "UserCodeError", "UserExperiment", "error_line", "show_error"]

ERROR_CHARACTERS = 1_000
"""Longest `error` of a job."""


class UserCodeError(Exception):
    """The user's file is not what the contract asks for."""


class EvaluationFailed(Exception):
    """The process that evaluates has failed; all there is of its error is the text of its traceback."""

    def __init__(self, traceback_text: str) -> None:
        super().__init__(traceback_text)
        self.traceback_text = traceback_text


SELF_EXPLAINING = (UserCodeError, BundleError, RegistryError)
"""Errors that say all in their message; their traceback would show the appliance's frames only."""


@dataclass(frozen=True)
class UserExperiment:
    """The user's `experiment(run_config, params)`. Picklable: another process loads the file again."""

    code: str
    """The folder of the unpacked bundle."""
    file: str
    """Relative to it."""
    function: str

    def __call__(self, run_config: Any, params: Any) -> Any:
        """Return the user's Experiment.

        Raises:
            UserCodeError: there is no such file or function, or it returned something else.
            Exception: whatever the user's code raises.
        """
        from appliance.estimator import Experiment

        experiment = self.load()(run_config, params)
        if not isinstance(experiment, Experiment):
            raise UserCodeError(
                f"{self.function}() of {self.file} must return an Experiment. Received: {experiment!r:.100}."
            )
        return experiment

    def data_fingerprint(self, params: Any) -> str:
        """Return what the file's own `data_fingerprint(params)` returns, or nothing where it has none.

        Raises:
            UserCodeError: it returned something else than text.
            Exception: whatever the user's code raises.
        """
        function = getattr(_load_module(Path(self.code), self.file), "data_fingerprint", None)
        told = "" if function is None else function(params)
        if not isinstance(told, str):
            raise UserCodeError(
                f"data_fingerprint() of {self.file} must return text, as the functions of "
                f"registry.fingerprints do. Received: {told!r:.100}."
            )
        return told

    def load(self) -> Callable[[Any, Any], Any]:
        """Return the user's function, after running the file once in this process.

        Raises:
            UserCodeError, Exception: as for a call.
        """
        module = _load_module(Path(self.code), self.file)
        function = getattr(module, self.function, None)
        if not callable(function):
            known = [
                name
                for name, value in vars(module).items()
                if getattr(value, "__module__", None) == module.__name__
            ]
            raise UserCodeError(
                f"{self.file} has no function {self.function!r}; it has: {', '.join(known) or 'none'}. "
                f"Write `def {self.function}(run_config, params):` that returns an Experiment."
            )
        return function


def _load_module(code: Path, file: str) -> ModuleType:
    """Run the file as a module of its own name, so that its neighbours can import it, and it them."""
    path = code / file
    if not path.is_file():
        raise UserCodeError(f"The bundle has no file {file!r}.")
    name = path.stem
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = sys.modules.get(name)
    if module is not None:
        if getattr(module, "__file__", None) == str(path):
            return module
        raise UserCodeError(f"{file} has the name of the module {name!r}. Give it another name.")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserCodeError(f"Cannot import {file!r}: it is not a Python file.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def show_error(error: BaseException, code: str) -> str:
    """Return the traceback as the user would see it at home: from the first frame in their own files on.

    An error that no file of theirs had a part in keeps all frames. Paths are relative to the bundle.
    """
    if isinstance(error, SELF_EXPLAINING):
        return str(error)
    if isinstance(error, EvaluationFailed):
        return f"The evaluation failed.\n{_trim_text(error.traceback_text, code)}"
    shown = traceback.TracebackException.from_exception(error)
    _trim(shown, f"{code}/")
    return _relative("".join(shown.format()), code)


def error_line(error: BaseException) -> str:
    """Return the line that ends the error's traceback, such as `ValueError: bad`; one line, even of many."""
    if isinstance(error, SELF_EXPLAINING):
        line = str(error)
    elif isinstance(error, EvaluationFailed):
        line = f"The evaluation failed: {error.traceback_text.strip().splitlines()[-1]}"
    else:
        kind = type(error)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        told = [text for text in traceback.format_exception_only(error) if text.startswith(name)]
        line = told[-1].splitlines()[0] if told else name
    return line[:ERROR_CHARACTERS]


def _trim_text(text: str, code: str) -> str:
    """Return a traceback that another process has formatted, trimmed like one of this process."""
    lines = text.splitlines(keepends=True)
    users = [index for index, line in enumerate(lines) if line.startswith(f'  File "{code}/')]
    return _relative("".join([*lines[:1], *lines[users[0] :]]) if users else text, code)


def _trim(shown: traceback.TracebackException | None, prefix: str) -> None:
    while shown is not None:
        users = [index for index, frame in enumerate(shown.stack) if frame.filename.startswith(prefix)]
        if users:
            del shown.stack[: users[0]]
        elif issubclass(shown.exc_type or Exception, SyntaxError) and str(shown.filename).startswith(prefix):
            shown.stack.clear()  # The file could not even begin; the error itself shows the line.
        _trim(shown.__cause__, prefix)
        shown = shown.__context__


def _relative(text: str, code: str) -> str:
    return text.rstrip("\n").replace(f'File "{code}/', 'File "')
