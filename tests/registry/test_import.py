"""What `import registry` brings with it."""

import subprocess
import sys

import registry

HEAVY = ("tensorflow", "keras", "alembic", "numpy", "pandas", "psycopg", "fsspec.implementations.local")


def test_import_brings_nothing_heavy() -> None:
    script = f"import registry, sys; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert loaded.stdout.strip() == "[]"


def test_all_names_are_there_and_sorted() -> None:
    assert sorted(registry.__all__) == registry.__all__
    public = {name for name, value in vars(registry).items() if isinstance(value, type)}
    assert public == set(registry.__all__)
