"""The public names of the library, and what importing costs."""

import ast
import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_with_a_list() -> list[str]:
    """Return the modules that say with `__all__` what of them is public."""
    found = []
    for package in ("appliance", "registry", "serving"):
        for file in sorted((ROOT / package).rglob("*.py")):
            assigned = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign)]
            if any(getattr(target, "id", "") == "__all__" for node in assigned for target in node.targets):
                parts = file.relative_to(ROOT).with_suffix("").parts
                found.append(".".join(part for part in parts if part != "__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_a_list())
def test_every_public_name_is_there_once(name):
    module = importlib.import_module(name)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def test_records_that_the_client_returns_are_public():
    """Whoever annotates what a call gave them finds its type beside the client."""
    from appliance import client

    returned = set()
    for name, method in inspect.getmembers(client.Client, inspect.isfunction):
        if not name.startswith("_"):
            returned |= ours_in(eval(method.__annotations__["return"], method.__globals__))
    missing = {kind.__name__ for kind in returned} - set(client.__all__)
    assert client.Webhook in returned
    assert missing == set()


def ours_in(annotation):
    """Return the classes of the client that an annotation such as `list[Job]` consists of."""
    inner = set().union(*(ours_in(part) for part in typing.get_args(annotation)))
    is_ours = str(getattr(annotation, "__module__", "")).startswith("appliance.client")
    return inner | {annotation} if is_ours and isinstance(annotation, type) else inner


def test_importing_the_package_imports_no_tensorflow():
    script = "import sys, appliance; print([name for name in sys.modules if name.startswith('tensorflow')])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
