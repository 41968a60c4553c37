"""Finds the symbols of tf.estimator that a source file uses, by reading its syntax tree."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.migration.symbols import NAMESPACES, WATCHED, Outcome, outcome_of

_BELOW_WATCHED = tuple(f"{name}." for name in WATCHED)

_MODULES = {
    "tensorflow": "tf",
    "tensorflow_estimator.estimator": "tf.estimator",
    "tensorflow_estimator": "tf",
    "tensorflow_estimator.python.estimator.api._v2.estimator": "tf.estimator",
    "tensorflow_estimator.python.estimator.api._v1.estimator": "tf.compat.v1.estimator",
    "tensorflow.python.estimator.estimator_lib": "tf.compat.v1.estimator",
}
"""Other names of the modules, as people import them."""


@dataclass(frozen=True)
class Finding:
    """One use of a symbol."""

    line: int
    symbol: str
    """With TensorFlow as `tf`."""
    outcome: Outcome


@dataclass(frozen=True)
class Report:
    """What one file uses."""

    path: str
    findings: tuple[Finding, ...]
    """In the order of the lines; each symbol once a line."""
    error: str = ""
    """Why the file could not be read; empty when it could."""


def scan_file(path: Path) -> Report:
    """Return what a Python file uses; a file that cannot be read or parsed gives a report that says so."""
    try:
        with tokenize.open(path) as file:
            return Report(str(path), scan(file.read()))
    except OSError as error:
        return Report(str(path), (), f"Cannot read it: {error.strerror}.")
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        return Report(str(path), (), f"Cannot parse it as Python {_version()}: {error}.")


def scan(source: str) -> tuple[Finding, ...]:
    """Return the uses of tf.estimator in Python source.

    Raises:
        SyntaxError: it is not Python.
    """
    reader = _Reader()
    reader.visit(ast.parse(source))
    uses = sorted(set(reader.uses))
    return tuple(Finding(line, symbol, outcome_of(symbol)) for line, symbol in uses)


def _version() -> str:
    import platform

    return platform.python_version()


class _Reader(ast.NodeVisitor):
    """Follows imports and plain aliases, and notes the dotted names that start in TensorFlow."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.uses: list[tuple[int, str]] = []

    def visit_Import(self, node: ast.Import) -> None:
        """Note what `import a.b as c` binds."""
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            target = _canonical(alias.name if alias.asname else bound)
            if target is not None:
                self._names[bound] = target
                self._use(node.lineno, target if alias.asname else _canonical(alias.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Note what `from a import b as c` binds."""
        for alias in node.names:
            target = _canonical(f"{node.module}.{alias.name}")
            if node.level == 0 and target is not None:
                self._names[alias.asname or alias.name] = target
                self._use(node.lineno, target)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note plain aliases: `learn = tf.contrib.learn`."""
        self.generic_visit(node)
        value = self._resolved(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and value is not None:
                self._names[target.id] = value

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note the longest dotted name that starts in TensorFlow."""
        symbol = self._resolved(node)
        if symbol is None:
            self.generic_visit(node)
        else:
            self._use(node.lineno, symbol)

    def visit_Name(self, node: ast.Name) -> None:
        """Note a symbol that was imported by itself."""
        if isinstance(node.ctx, ast.Load) and node.id in self._names:
            self._use(node.lineno, self._names[node.id])

    def _resolved(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            before = self._resolved(node.value)
            return None if before is None else _compat(f"{before}.{node.attr}")
        return None

    def _use(self, line: int, symbol: str | None) -> None:
        for known in _watched(symbol):
            self.uses.append((line, known))


def _watched(symbol: str | None) -> Iterator[str]:
    """Yield the symbol, without the members of a class behind it, if it is one to report."""
    if symbol is None or symbol in NAMESPACES or not symbol.startswith(_BELOW_WATCHED):
        return
    parts = symbol.split(".")
    shorter = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    # `tf.estimator.ModeKeys.TRAIN` is a use of ModeKeys.
    yield next((name for name in shorter if outcome_of(name).kind != "gone"), symbol)


def _canonical(name: str) -> str | None:
    """Return a dotted module or symbol with TensorFlow as `tf`; None when it is of another library."""
    for module in sorted(_MODULES, key=len, reverse=True):
        if name == module or name.startswith(f"{module}."):
            return _compat(_MODULES[module] + name[len(module) :])
    return None


def _compat(name: str) -> str:
    """`tf.compat.v2` is `tf`."""
    return "tf" + name.removeprefix("tf.compat.v2") if name.startswith("tf.compat.v2") else name
