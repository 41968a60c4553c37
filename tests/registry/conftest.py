"""A registry on each database, and SavedModels that are small."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, make_url

from registry import Registry
from tests.conftest import new_database


@event.listens_for(Engine, "connect")
def _do_not_wait_for_the_disk(connection: object, _record: object) -> None:
    """Nothing here must survive a power cut."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session")
def sqlite_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables of a registry, to be copied: migrations for each test take long."""
    folder = tmp_path_factory.mktemp("tables")
    Registry(f"sqlite:///{folder}/registry.db", folder).close()
    return folder / "registry.db"


@pytest.fixture(scope="session")
def postgres_with_tables(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of such a database in PostgreSQL."""
    with new_database(postgres_server) as url:
        Registry(url, tmp_path_factory.mktemp("tables")).close()
        yield str(make_url(url).database)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database: every test that uses it runs on both kinds.

    It is empty, unless the test asks for a registry too.
    """
    with_tables = "registry" in request.fixturenames
    if request.param == "sqlite":
        if with_tables:
            shutil.copyfile(request.getfixturevalue("sqlite_with_tables"), tmp_path / "registry.db")
        yield f"sqlite:///{tmp_path}/registry.db"
        return
    template = request.getfixturevalue("postgres_with_tables") if with_tables else "template1"
    with new_database(request.getfixturevalue("postgres_server"), template) as url:
        yield url


@pytest.fixture
def registry(database_url: str, tmp_path: Path) -> Iterator[Registry]:
    with Registry(database_url, tmp_path / "models") as opened:
        yield opened


@pytest.fixture
def saved_model(tmp_path: Path) -> Path:
    """A directory that looks like a SavedModel."""
    return make_saved_model(tmp_path / "saved_model")


@pytest.fixture
def census(registry: Registry, saved_model: Path) -> Registry:
    """A registry whose model `census` has the versions 1 to 5, of AUC 0.71 to 0.75."""
    registry.create_model("census")
    for number in range(1, 6):
        registry.publish(
            "census", saved_model, metrics={"auc": 0.7 + number / 100, "loss": 0.5 - number / 100}
        )
    return registry


def make_saved_model(directory: Path, weights: bytes = b"weights") -> Path:
    (directory / "variables").mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes(b"graph")
    (directory / "variables" / "variables.data-00000-of-00001").write_bytes(weights)
    (directory / "variables" / "variables.index").write_bytes(b"index")
    return directory
