"""Every dependency is declared, and docs/dependencies.md says why it is there."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"appliance", "registry", "serving"}
OURS = PACKAGES | {"collector_pause", "keras_on_demand"}
INHERITED = {
    "keras": "tensorflow",
    "ml-dtypes": "tensorflow",
    "protobuf": "tensorflow",
    "scipy": "scikit-learn",
    "starlette": "fastapi",
}
"""What is imported though another dependency brings it."""


def declared() -> set[str]:
    """Return the names of all dependencies, of the core and of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {normal(re.split(r"[\[><=]", requirement)[0]) for listed in lists for requirement in listed}
    return names - {project["name"]}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> set[str]:
    """Return the top-level modules of others that the packages import, wherever in a file they do."""
    found: set[str] = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    found.add(node.module.partition(".")[0])
    return found - OURS - set(sys.stdlib_module_names)


def test_every_import_is_declared_or_comes_with_what_is() -> None:
    distributions = packages_distributions()
    known = declared() | set(INHERITED)
    for module in sorted(imported()):
        assert known & {normal(name) for name in distributions[module]}, f"{module} is not declared"


def test_document_names_every_dependency() -> None:
    written = (ROOT / "docs" / "dependencies.md").read_text().lower()
    words = {normal(word) for word in re.findall(r"[a-z0-9][\w.-]*", written)}
    assert declared() | set(INHERITED) <= words, sorted((declared() | set(INHERITED)) - words)
