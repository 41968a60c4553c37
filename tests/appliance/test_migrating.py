"""A database of another release: refused with the command that helps, migrated once by many at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from appliance.settings import Settings
from appliance.startup import check_database
from registry import database
from registry.errors import DatabaseTooOld
from registry.store import MIGRATIONS, VERSION_TABLE
from registry.tables import Base


def appliance(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "APPLIANCE_HOME": str(home)}
    environment.pop("APPLIANCE_URL", None)
    command = [sys.executable, "-m", "appliance.cli", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def engine(tmp_path: Path) -> database.Engine:
    """The database of a home as the first release made it, with one model."""
    engine = database.connect(f"sqlite:///{tmp_path}/appliance.db")
    config = database._alembic_config(MIGRATIONS)
    with engine.begin() as connection:
        config.attributes.update(connection=connection, version_table=VERSION_TABLE, metadata=Base.metadata)
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO registry_models VALUES ('old', 'kept', 1, '2026-01-02 03:04:05.000000')")
        )
    return engine


def test_older_database_is_refused_until_migrated_which_many_may_start_at_once(
    engine: database.Engine, tmp_path: Path
) -> None:
    out, err = appliance(tmp_path, "registry", "list").communicate(timeout=120)
    assert "tables are at revision 0001" in err
    assert "Run `appliance registry migrate`" in err
    with pytest.raises(DatabaseTooOld, match="`appliance registry migrate`"):
        check_database(Settings(home=tmp_path))
    assert not inspect(engine).has_table("registry_version_metrics"), "refusing must change nothing"

    started = [appliance(tmp_path, "registry", "migrate") for _ in range(3)]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert re.fullmatch(r"the database is up to date(: registry from 0001 to \d+(, .*)?)?\n", out)
    engine.dispose()
    out, err = appliance(tmp_path, "registry", "list").communicate(timeout=120)
    assert "kept" in out, err


def test_newer_database_is_refused_with_the_command_to_run(engine: database.Engine, tmp_path: Path) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    engine.dispose()
    for subcommand in ("list", "migrate"):
        process = appliance(tmp_path, "registry", subcommand)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "at revision 9999" in err
        assert "pip install --upgrade estimator-appliance" in err
