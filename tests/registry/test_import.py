"""What `import registry` brings with it."""

import subprocess
import sys

import registry

HEAVY = ("tensorflow", "keras", "alembic", "numpy", "pandas", "psycopg", "fsspec.implementations.local")
NOT_BEFORE_REGISTRY = ("sqlalchemy", "fsspec", "httpx", "asyncio")


def test_import_brings_nothing_heavy() -> None:
    assert loaded_by("from registry import Registry", HEAVY) == "[]"
    assert loaded_by("import registry.errors", (*HEAVY, *NOT_BEFORE_REGISTRY)) == "[]"


def loaded_by(statement: str, names: tuple[str, ...]) -> str:
    script = f"{statement}; import sys; print([name for name in {names} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return loaded.stdout.strip()


def test_all_names_are_there_and_sorted() -> None:
    assert sorted(registry.__all__) == registry.__all__
    public = {name for name, value in vars(registry).items() if isinstance(value, type)}
    assert public | {"Registry"} == set(registry.__all__)
    assert registry.Registry.__name__ == "Registry"
    assert not hasattr(registry, "Registrar")
