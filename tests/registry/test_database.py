"""Connecting, migrating, and what the schema itself refuses."""

import pickle
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, event, inspect, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from registry import Registry, database
from registry.errors import (
    DatabaseBusy,
    DatabaseGone,
    DatabaseTooNew,
    DatabaseTooOld,
    DatabaseUnavailable,
    InvalidInput,
)
from registry.sqlite_locks import writer_of
from registry.store import VERSION_TABLE, migrate_registry
from registry.tables import Base
from tests.registry.writing_process import writing_process

REVISION = """
from alembic import op
revision, down_revision = {revision!r}, {down!r}
def upgrade():
    op.execute("CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    {then}
"""


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    """The folder of another owner's migrations, with one revision."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text("from registry.database import run_environment\nrun_environment()\n")
    add_revision(folder, 1)
    return folder


def add_revision(folder: Path, number: int, then: str = "pass") -> None:
    down = str(number - 1) if number > 1 else None
    content = REVISION.format(revision=str(number), down=down, table=f"things_{number}", then=then)
    (folder / "versions" / f"r{number}.py").write_text(content)


def tables(engine: database.Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_migrations_make_exactly_the_tables_of_the_code(registry: Registry, database_url: str) -> None:
    engine = database.connect(database_url)
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
        inspector = inspect(connection)
        for table in Base.metadata.tables.values():
            found = {check["name"] for check in inspector.get_check_constraints(table.name)}
            assert found == {check.name for check in table.constraints if "ck_" in str(check.name)}
    engine.dispose()


def test_schema_refuses_what_the_code_never_does(census: Registry, database_url: str) -> None:
    census.promote("census", 1, actor="ada")
    census.promote("census", 2, actor="ada")
    census.delete_version("census", 3, actor="ada")
    engine = database.connect(database_url)
    for statement, message in (
        ("UPDATE registry_promotions SET actor = 'eve'", "append-only"),
        ("DELETE FROM registry_promotions WHERE id = 2", "append-only"),
        ("UPDATE registry_versions SET metrics = '{}' WHERE version = 1", "immutable"),
        ("UPDATE registry_versions SET state = 'pending' WHERE version = 1", "immutable"),
        ("UPDATE registry_versions SET state = 'ready' WHERE version = 3", "immutable"),
        ("DELETE FROM registry_versions WHERE version = 5", "rows stay"),
        ("UPDATE registry_versions SET state = 'odd' WHERE version = 1", "immutable|state"),
        ("UPDATE registry_labels SET version = 99", "(?i)foreign key"),
        ("UPDATE registry_models SET next_version = 0", "next_version"),
        ("DELETE FROM registry_models", "(?i)foreign key"),
        ("INSERT INTO registry_revision VALUES (2, 0)", "one_row"),
    ):
        with pytest.raises(IntegrityError, match=message), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()


def test_every_column_of_a_ready_version_is_immutable_but_for_tags_and_description(
    census: Registry, database_url: str
) -> None:
    """Also one that is added later: the trigger must be told of it."""
    from registry.tables import VersionRow

    may_change = {"tags", "description", "state", "touched_at", "deleted_at", "deleted_by"}
    other = {"INTEGER": "77", "BIGINT": "77", "JSON": "'{\"a\": 1}'", "DATETIME": "'2020-01-01 00:00:00'"}
    engine = database.connect(database_url)
    for column in VersionRow.__table__.columns:
        if column.name in may_change:
            continue
        value = next((text for kind, text in other.items() if str(column.type).startswith(kind)), "'x'")
        change = text(f"UPDATE registry_versions SET {column.name} = {value} WHERE version = 1")
        with pytest.raises(IntegrityError, match="immutable once published"), engine.begin() as connection:
            connection.execute(change)
    engine.dispose()


def test_processes_that_start_together_migrate_once(database_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "registry", "migrate", database_url]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, b"The registry's tables are up to date.\n", b"")
    Registry(database_url, tmp_path, migrate=False).close()


def test_newer_database_is_refused_with_the_command_to_run(
    registry: Registry, database_url: str, tmp_path: Path
) -> None:
    engine = database.connect(database_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    engine.dispose()
    for migrate in (True, False):
        with pytest.raises(DatabaseTooNew, match=r"at revision 9999, .*`pip install --upgrade estimator-"):
            Registry(database_url, tmp_path, migrate=migrate)


def test_older_database_is_migrated_or_refused_with_the_command(database_url: str, migrations: Path) -> None:
    engine = database.connect(database_url)
    database.migrate(engine, str(migrations), "other_version", MetaData())
    add_revision(migrations, 2)
    with pytest.raises(DatabaseTooOld, match=r"at revision 1, this release needs 2\. Run `other migrate`"):
        database.check_migrated(engine, str(migrations), "other_version", "other migrate")
    assert "things_2" not in tables(engine)
    database.migrate(engine, str(migrations), "other_version", MetaData())
    database.check_migrated(engine, str(migrations), "other_version", "other migrate")
    assert {"things_1", "things_2"} <= tables(engine)
    engine.dispose()


def test_owners_of_tables_share_a_database(registry: Registry, database_url: str, migrations: Path) -> None:
    engine = database.connect(database_url)
    database.migrate(engine, str(migrations), "other_version", MetaData())
    migrate_registry(engine)
    assert {"things_1", "other_version", "registry_models", VERSION_TABLE} <= tables(engine)
    engine.dispose()


def test_migration_killed_half_way_leaves_nothing_and_can_be_repeated(
    database_url: str, migrations: Path
) -> None:
    engine = database.connect(database_url)
    database.migrate(engine, str(migrations), "other_version", MetaData())
    add_revision(migrations, 2, then="import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    script = (
        "import sys; from sqlalchemy import MetaData; from registry.database import connect, migrate\n"
        "migrate(connect(sys.argv[1]), sys.argv[2], 'other_version', MetaData())"
    )
    killed = subprocess.run([sys.executable, "-c", script, database_url, str(migrations)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert "things_2" not in tables(engine)
    add_revision(migrations, 2)
    database.migrate(engine, str(migrations), "other_version", MetaData())
    assert "things_2" in tables(engine)
    engine.dispose()


def test_unreachable_server_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        Registry("postgresql://ada:secret@127.0.0.1:1/registry", tmp_path)
    assert "postgresql+psycopg://ada:***@127.0.0.1:1/registry" in str(caught.value)
    assert "refused" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_command_says_in_one_line_why_it_fails() -> None:
    command = [sys.executable, "-m", "registry", "migrate", "postgresql://ada@127.0.0.1:1/registry"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert failed.returncode == 1
    assert failed.stderr.startswith("Cannot use the database postgresql+psycopg://ada@127.0.0.1:1/registry: ")
    assert failed.stderr.count("\n") == 1


def test_files_that_are_no_database_are_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("not a database at all, but long enough to look like one" * 10)
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        Registry(f"sqlite:///{tmp_path}/note.txt", tmp_path)
    with pytest.raises(DatabaseUnavailable, match="its folder cannot be made"):
        Registry(f"sqlite:///{tmp_path}/note.txt/registry.db", tmp_path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://ada@host/registry", "Cannot use a mysql database"),
        ("registry.db", "Cannot read the database URL 'registry.db'"),
        ("gopher://host", "Cannot .* database"),
    ],
)
def test_urls_of_other_databases_are_refused(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Registry(url, tmp_path)


def test_sqlite_runs_with_write_ahead_log_and_foreign_keys(tmp_path: Path) -> None:
    engine = database.connect(f"sqlite:///{tmp_path}/deep/down/registry.db")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
    engine.dispose()


def test_a_database_that_stays_busy_is_reported_with_whom_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.01)
    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path) as registry:
        with writing_process(tmp_path / "registry.db") as writer:
            with pytest.raises(DatabaseBusy) as caught:
                registry.create_model("census")
            assert registry.models() == [], "readers go on"
        error = pickle.loads(pickle.dumps(caught.value))
        assert error.holder == writer
        assert re.fullmatch(
            rf"Cannot use the database sqlite:///{tmp_path}/registry.db: it is busy: after [\d.]+ s of "
            rf"waiting, process {writer} holds its write lock. Wait until that process is done, "
            "then try again.",
            str(error),
        )
        registry.create_model("census")


def test_waiting_for_the_lock_ends_with_the_time_of_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six attempts would take minutes, and a client of the API does not wait so long for its answer."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.01)
    engine, attempts = database.connect(f"sqlite:///{tmp_path}/registry.db"), []
    database.write(engine, lambda session: session.execute(text("SELECT 1")))
    event.listen(engine, "before_cursor_execute", lambda *told: attempts.append(told[2]))
    with writing_process(tmp_path / "registry.db"), pytest.raises(DatabaseBusy):
        database.write(engine, lambda session: session.execute(text("SELECT 1")))
    assert attempts == ["BEGIN IMMEDIATE"]
    engine.dispose()


def test_writer_is_told_only_while_it_writes(tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    assert writer_of(str(file)) is None, "there is no database"
    Registry(f"sqlite:///{file}", tmp_path).close()
    with writing_process(file) as writer:
        assert writer_of(str(file)) == writer
        idle = sqlite3.connect(file, isolation_level=None)
        idle.execute("SELECT count(*) FROM sqlite_master").fetchall()
    assert writer_of(str(file)) is None, "a process that has it open is no writer"
    idle.close()


def test_file_deleted_under_a_registry_is_told_and_no_empty_one_is_made(tmp_path: Path) -> None:
    file, away = tmp_path / "registry.db", tmp_path / "away.db"
    with Registry(f"sqlite:///{file}", tmp_path) as registry, ThreadPoolExecutor(4) as threads:
        registry.create_model("census")
        file.rename(away)
        at_once = threading.Barrier(4)

        def ask(_number: int) -> str:
            """Ask on a connection of one's own: nobody gets the only one that is open already."""
            at_once.wait(timeout=60)
            with pytest.raises(DatabaseGone) as caught:
                registry.models()
            return caught.value.what

        with pytest.raises(DatabaseGone) as caught:
            registry.create_model("flights")
        assert list(threads.map(ask, range(4))) == ["deleted"] * 4
        assert not file.exists()
        error = pickle.loads(pickle.dumps(caught.value))
        assert str(error) == (
            f"Cannot use the database sqlite:///{file}: its file was deleted while it was in use. Stop every "
            "process that uses it; then move the same file back, or remove what has its name with -wal and "
            "-shm at the end, and put a backup in its place. Without the file it would start empty."
        )
        away.rename(file)
        assert [model.name for model in registry.models()] == ["census"], "nothing is lost"


def test_file_replaced_under_a_registry_is_told_and_a_backup_serves_after_it(tmp_path: Path) -> None:
    file, backup = tmp_path / "registry.db", tmp_path / "backup.db"
    with Registry(f"sqlite:///{file}", tmp_path) as registry:
        registry.create_model("census")
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        registry.create_model("flights")
        file.unlink()
        shutil.copy(backup, file)
        with pytest.raises(DatabaseGone, match="replaced by another"):
            registry.models()
    for rest in ("-wal", "-shm"):
        Path(f"{file}{rest}").unlink()
    with Registry(f"sqlite:///{file}", tmp_path) as registry:
        assert [model.name for model in registry.models()] == ["census"]


def test_work_is_done_again_when_another_transaction_was_in_its_way(database_url: str) -> None:
    """Both insert the same key; the loser of the race runs again and then sees the winner's row."""
    engine, other = database.connect(database_url), database.connect(database_url)
    database.write(
        engine, lambda session: session.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY)"))
    )
    attempts: list[int] = []

    def insert_unless_there(session: Session) -> int:
        attempts.append(1)
        count = session.execute(text("SELECT count(*) FROM things")).scalar_one()
        if len(attempts) == 1 and engine.dialect.name == "postgresql":
            database.write(other, lambda session: session.execute(text("INSERT INTO things VALUES (1)")))
        if count == 0:
            session.execute(text("INSERT INTO things VALUES (1)"))
        return count

    expected = (1, 2) if engine.dialect.name == "postgresql" else (0, 1)
    assert (database.write(engine, insert_unless_there), len(attempts)) == expected
    engine.dispose()
    other.dispose()


def test_read_sees_one_moment(census: Registry, database_url: str) -> None:
    engine = database.connect(database_url)

    def count_twice(session: Session) -> tuple[int, int]:
        query = text("SELECT count(*) FROM registry_promotions")
        before = session.execute(query).scalar_one()
        census.promote("census", 1, actor="ada")
        return before, session.execute(query).scalar_one()

    assert database.read(engine, count_twice) == (0, 0)
    engine.dispose()
