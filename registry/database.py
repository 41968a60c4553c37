"""What every owner of tables in the database needs: an engine, transactions that retry, migrations.

On SQLite a transaction begins with BEGIN IMMEDIATE unless it is marked as reading only: a transaction that
reads first and writes later could otherwise be refused half-way, because its view has become old, and no busy
timeout helps then.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    String,
    column,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    table,
    text,
)
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from registry.errors import (
    DatabaseBusy,
    DatabaseTooNew,
    DatabaseTooOld,
    DatabaseUnavailable,
    InvalidInput,
)
from registry.sqlite_file import SQLiteFile
from registry.sqlite_locks import writer_of

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a transaction waits for SQLite's write lock; less than a client waits for its answer."""
ATTEMPTS = 6
"""How often a transaction is run when the database says that another was in its way."""
FIRST_PAUSE_SECONDS = 0.01
"""The first pause between two attempts, doubled each time, of which a random part is waited."""

T = TypeVar("T")
# Alembic keeps the migration under way in module globals, so within a process one thread migrates at a time.
_migrating = threading.Lock()


def connect(url: str) -> Engine:
    """Return an engine for `url`: a SQLite file or PostgreSQL. Opens no connection yet.

    SQLite: the folder is made; write-ahead log, foreign keys, a busy timeout, BEGIN IMMEDIATE for writers.
    PostgreSQL: psycopg 3; connections are tested before use, so a restart of the server is survived.

    Raises:
        InvalidInput: the URL is for neither, or for a SQLite database in memory, which threads cannot share.
        DatabaseUnavailable: the folder of the SQLite file cannot be made, or the driver is missing.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return _connect_sqlite(parsed)
    try:
        return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise DatabaseUnavailable(
            parsed.render_as_string(),
            "psycopg is not installed",
            "Run `pip install 'estimator-appliance[postgres]'`.",
        ) from error


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1))
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise InvalidInput(
            f"Cannot read the database URL {url!r}: {error}. Write sqlite:///file.db or postgresql://..."
        ) from error
    if backend not in ("sqlite", "postgresql"):
        raise InvalidInput(
            f"Cannot use a {backend} database. Write sqlite:///file.db or postgresql://user@host/name."
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InvalidInput(
            "Cannot use a SQLite database in memory: threads could not share it. Write sqlite:///file.db."
        )
    return parsed


def _connect_sqlite(url: URL) -> Engine:
    folder = Path(str(url.database)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailable(url.render_as_string(), f"its folder cannot be made: {error}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS}, max_overflow=-1)
    file = SQLiteFile(shown(engine), str(url.database))
    # Checked before each connection, which would make a new file, and before each transaction; not when a
    # connection leaves the pool, which would close it, and with the last one the bytes of a deleted file go.
    event.listen(engine, "do_connect", lambda *_: file.check())
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "connect", lambda *_: file.opened())
    event.listen(engine, "begin", lambda _: file.check())
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own, late BEGIN is switched off: it comes before INSERT but not before DDL or SELECT.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # The change needs the file to itself and does not wait for it; another process may be doing the
            # same.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))


def _begin_sqlite(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def write(engine: Engine, work: Callable[[Session], T]) -> T:
    """Run `work` in one transaction and return its result; run it again when another was in its way.

    `work` may run several times, so it must do nothing but use the session.

    Raises:
        DatabaseBusy: others were in its way through all attempts.
        DatabaseUnavailable: the database cannot be reached.
        InvalidInput: a value is one that no column can hold, nor therefore be looked for in it.
    """
    return _run(engine, engine, work)


def read(engine: Engine, work: Callable[[Session], T]) -> T:
    """Run `work` in one transaction that only reads, all of it at the same moment, and return its result.

    Raises:
        DatabaseBusy, DatabaseUnavailable, InvalidInput: as for `write`.
    """
    options: dict[str, Any] = {"read_only": True}
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    return _run(engine, engine.execution_options(**options), work)


def _run(engine: Engine, bind: Engine, work: Callable[[Session], T]) -> T:
    began = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with Session(bind, expire_on_commit=False) as session, session.begin():
                return work(session)
        except DBAPIError as error:
            waited = time.monotonic() - began
            if attempt < ATTEMPTS and _was_in_the_way(error) and not _has_waited(error, waited):
                time.sleep(random.uniform(0, FIRST_PAUSE_SECONDS * 2**attempt))
            elif _is_unusable(error):
                raise _unavailable(engine, error, waited) from error
            elif isinstance(error, DataError):
                raise _cannot_be_held(error.orig) from error
            else:
                raise
        except (OverflowError, UnicodeError) as error:
            raise _cannot_be_held(error) from error
        except StatementError as error:
            if isinstance(error.orig, OverflowError | UnicodeError):
                raise _cannot_be_held(error.orig) from error
            raise
        except PoolTimeout as error:
            raise DatabaseUnavailable(shown(engine), "all its connections stayed in use") from error
    raise AssertionError("unreachable: the last attempt returns or raises")


def _was_in_the_way(error: DBAPIError) -> bool:
    """Return whether the error comes from another transaction, so that a second try may succeed."""
    if isinstance(error.orig, sqlite3.Error):
        return error.orig.sqlite_errorname.startswith(
            ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CONSTRAINT_PRIMARYKEY")
        )
    # PostgreSQL: serialization failure, deadlock, lock not available, unique violation.
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01", "55P03", "23505")


def _is_unusable(error: DBAPIError) -> bool:
    """Return whether the database, and not what was asked of it, is at fault."""
    if isinstance(error.orig, sqlite3.Error) and error.orig.sqlite_errorname in (
        "SQLITE_NOTADB",
        "SQLITE_CORRUPT",
    ):
        return True
    return isinstance(error, OperationalError)


def _cannot_be_held(reason: BaseException | None) -> InvalidInput:
    return InvalidInput(
        f"Cannot ask the database about a value that it cannot hold: {' '.join(str(reason).split())}. "
        "Give text of Unicode characters other than NUL, and numbers and times of ordinary size."
    )


def _has_waited(error: DBAPIError, seconds: float) -> bool:
    """Return whether SQLite has waited for the lock already, so that another try is only more of the same."""
    return (
        isinstance(error.orig, sqlite3.Error)
        and error.orig.sqlite_errorname.startswith("SQLITE_BUSY")
        and seconds >= BUSY_TIMEOUT_SECONDS
    )


def _unavailable(engine: Engine, error: DBAPIError, waited_seconds: float) -> DatabaseUnavailable:
    if _was_in_the_way(error):
        is_sqlite = engine.dialect.name == "sqlite"
        holder = writer_of(str(engine.url.database)) if is_sqlite else None
        return DatabaseBusy(shown(engine), waited_seconds, holder)
    return DatabaseUnavailable(shown(engine), " ".join(str(error.orig).split()))


def shown(engine: Engine) -> str:
    """Return the engine's URL as it may be shown: without the password."""
    return engine.url.render_as_string(hide_password=True)


def migrate(engine: Engine, script_location: str, version_table: str, metadata: MetaData) -> None:
    """Bring the tables of one owner to the newest revision of its Alembic history, if they are not there yet.

    All in one transaction under the database's own lock: of many processes that start together one migrates
    and the others find it done, and a crash leaves the tables as they were. The `env.py` of `script_location`
    consists of a call to `run_environment`.

    Args:
        engine: from `connect`.
        script_location: the folder of the migrations, as a path or `package:folder`.
        version_table: where this owner's revision is kept; each owner of tables in the database has its own.
        metadata: the owner's tables as the code has them.

    Raises:
        DatabaseTooNew: the tables were made by a newer release.
        DatabaseUnavailable: the database cannot be reached.
    """
    from alembic import command  # heavy, and needed at start-up only

    def upgrade(session: Session) -> None:
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:key)"), {"key": zlib.crc32(version_table.encode())}
            )
        if _is_current(engine, connection, script_location, version_table):
            return
        config = _alembic_config(script_location)
        config.attributes.update(connection=connection, version_table=version_table, metadata=metadata)
        command.upgrade(config, "head")

    with _migrating:
        if not read(engine, lambda s: _is_current(engine, s.connection(), script_location, version_table)):
            write(engine, upgrade)


def prepare(
    engine: Engine,
    script_location: str,
    version_table: str,
    metadata: MetaData,
    *,
    may_migrate: bool,
    migrate_command: str,
) -> None:
    """Make the tables of one owner where there are none; migrate older ones if that is allowed.

    Raises:
        DatabaseTooOld: they are older, and may not be migrated; the message says to run `migrate_command`.
        DatabaseTooNew: the tables were made by a newer release.
        DatabaseUnavailable: the database cannot be reached.
    """
    if may_migrate or revision_of(engine, version_table) is None:
        migrate(engine, script_location, version_table, metadata)
    else:
        check_migrated(engine, script_location, version_table, migrate_command)


def check_migrated(engine: Engine, script_location: str, version_table: str, migrate_command: str) -> None:
    """Check that the tables of one owner are at the newest revision, and change nothing.

    Raises:
        DatabaseTooOld: they are not; the message says to run `migrate_command`.
        DatabaseTooNew: the tables were made by a newer release.
        DatabaseUnavailable: the database cannot be reached.
    """
    found = revision_of(engine, version_table)
    if not read(engine, lambda s: _is_current(engine, s.connection(), script_location, version_table)):
        raise DatabaseTooOld(
            shown(engine), found or "none", _newest_revision(script_location), migrate_command
        )


def run_environment() -> None:
    """Run the migrations that `migrate` asked for, in its transaction. All of an owner's `env.py`."""
    from alembic import context

    given = context.config.attributes
    context.configure(
        connection=given["connection"],
        target_metadata=given["metadata"],
        version_table=given["version_table"],
        render_as_batch=True,
    )
    context.run_migrations()


def revision_of(engine: Engine, version_table: str) -> str | None:
    """Return the revision that the tables of an owner are at; None: it has none in the database yet."""
    return read(engine, lambda session: _found_revision(session.connection(), version_table))


def _alembic_config(script_location: str) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", script_location.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _found_revision(connection: Connection, version_table: str) -> str | None:
    # Read without Alembic, whose migration context writes two lines to the log each time it is asked.
    if not inspect(connection).has_table(version_table):
        return None
    query = select(column("version_num", String)).select_from(table(version_table))
    return connection.execute(query).scalar_one_or_none()


def _newest_revision(script_location: str) -> str:
    from alembic.script import ScriptDirectory

    return str(ScriptDirectory.from_config(_alembic_config(script_location)).get_current_head())


def _is_current(engine: Engine, connection: Connection, script_location: str, version_table: str) -> bool:
    from alembic.script import ScriptDirectory

    found = _found_revision(connection, version_table)
    scripts = ScriptDirectory.from_config(_alembic_config(script_location))
    newest = str(scripts.get_current_head())
    if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
        raise DatabaseTooNew(shown(engine), found, newest)
    return found == newest
