"""Operations killed by SIGKILL before each step: nothing half is visible, repeating them succeeds."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from registry import Registry, database
from registry.store import MIGRATIONS, VERSION_TABLE
from registry.tables import Base
from tests.registry import fault_points
from tests.registry.receiver import Server

Attempt = Callable[[str, int], bool]
PRELOADED = [
    "tests.registry.fault_points",
    "alembic.command",
    "fsspec.implementations.local",
    "httpx",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
]
"""What an operation needs, also what the registry imports only when it is used."""


@pytest.fixture
def attempt(database_url: str, saved_model: Path, tmp_path: Path) -> Attempt:
    """Run an operation in a process that is killed before the step; return whether it lived to the end."""
    # A server that has imported everything forks the processes, which so start in a moment.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)

    def run(operation: str, die_before: int) -> bool:
        arguments = (operation, database_url, str(tmp_path / "models"), str(saved_model), die_before)
        process = server.Process(target=fault_points.run, args=arguments)
        process.start()
        process.join(timeout=120)
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode == 0

    return run


@pytest.fixture
def three(registry: Registry, saved_model: Path) -> Registry:
    """Model census: versions 1 to 3, the first in production. Somebody is to be told of every change."""
    registry.add_webhook("http://127.0.0.1:9/", actor="ada")
    registry.create_model("census")
    for _ in range(3):
        registry.publish("census", saved_model)
    registry.promote("census", 1, actor="ada")
    return registry


def killed_steps(attempt: Attempt, operation: str) -> Iterator[int]:
    """Yield after each death; end when the operation has lived."""
    step = 1
    while not attempt(operation, step):
        yield step
        step += 1
    assert step > 3, "there were steps to be killed before"


def ready(registry: Registry) -> set[int]:
    return {version.version for version in registry.versions("census") if version.state == "ready"}


def check_whole(registry: Registry) -> None:
    """Whatever is visible is whole: files as published, labels as the history says, events as the moves.

    And each event is in the outbox.
    """
    assert all(entry.intact for entry in registry.verify("census"))
    replayed: dict[str, int] = {}
    for move in reversed(registry.history("census")):
        assert move.from_version == replayed.get(move.label)
        replayed[move.label] = move.to_version
    assert replayed == registry.labels("census")
    moves = [move.to_version for move in registry.history("census")]
    told = [event for event in registry.events("census") if event.kind.startswith("label.")]
    assert [event.to_version for event in told] == moves
    states = {version.version for version in registry.versions("census") if version.state == "ready"}
    announced = {event.version for event in registry.events("census", kinds=["version.ready"])}
    deleted = {event.version for event in registry.events("census", kinds=["version.deleted"])}
    assert states == announced - deleted
    letters = sorted(delivery.event for delivery in registry.deliveries(limit=1000))
    assert letters == sorted(event.id for event in registry.events("census"))


def test_publishing_killed_before_each_step(three: Registry, attempt: Attempt, tmp_path: Path) -> None:
    for _ in killed_steps(attempt, "publish"):
        assert ready(three) >= {1, 2, 3}
        check_whole(three)
    three.gc(older_than_seconds=0)
    newest = max(ready(three))
    assert newest == max(version.version for version in three.versions("census"))
    check_whole(three)
    places = {path.parent.relative_to(tmp_path / "models") for path in (tmp_path / "models").rglob("*.pb")}
    assert places == {Path("census", str(number)) for number in ready(three)}


def test_promoting_and_rolling_back_killed_before_each_step(three: Registry, attempt: Attempt) -> None:
    for _ in killed_steps(attempt, "promote"):
        # The last death may come after the database has committed, before the process has heard of it.
        assert three.labels("census")["production"] in (1, 2)
        check_whole(three)
    assert three.labels("census") == {"production": 2}
    for _ in killed_steps(attempt, "rollback"):
        assert three.labels("census")["production"] == 2
        check_whole(three)
    assert three.labels("census") == {"production": 1}
    check_whole(three)


def test_deleting_killed_before_each_step(three: Registry, attempt: Attempt, tmp_path: Path) -> None:
    for _ in killed_steps(attempt, "delete"):
        # Between the commit and the last file the version is deleted, and its files are nobody's any more.
        check_whole(three)
    assert ready(three) == {1, 2}
    three.gc()
    assert not (tmp_path / "models" / "census" / "3").exists()


def test_collecting_killed_before_each_step(three: Registry, attempt: Attempt, tmp_path: Path) -> None:
    attempt("publish", 12)
    (abandoned,) = [version for version in three.versions("census") if version.state == "pending"]
    three.set_retention("census", keep_last=1, keep_production=True, actor="ada")
    for _ in killed_steps(attempt, "gc"):
        assert {1, 3} <= ready(three)
        check_whole(three)
    assert ready(three) == {1, 3}, "1 is in production, 3 is the newest"
    assert three.version("census", abandoned.version).state == "failed"
    folders = {path.name for path in (tmp_path / "models" / "census").iterdir()}
    assert folders == {"1", "3"}
    assert not list((tmp_path / "models" / ".pending").rglob("*.pb"))


def test_sending_killed_before_each_step(three: Registry, attempt: Attempt) -> None:
    """From the commit of a change to the note that it was told, no death of a sender loses it."""
    three.remove_webhook(1, actor="ada")
    server = Server()
    try:
        hook = three.add_webhook(server.receiver.url, kinds=["label.moved"], actor="ada")
        move = three.promote("census", 2, actor="ada")
        seen = set()
        for _ in killed_steps(attempt, "deliver"):
            (delivery,) = three.deliveries(hook.id)
            seen.add((delivery.state, bool(server.receiver.got)))
        assert ("delivered", False) not in seen, "it is not taken for told before it is"
        assert seen >= {("pending", False), ("pending", True)}, "they died before and after sending"
    finally:
        server.close()
    (delivery,) = three.deliveries(hook.id)
    assert delivery.state == "delivered"
    assert {(got.headers["Appliance-Delivery"], got.event["to_version"]) for got in server.receiver.got} == {
        (str(delivery.id), move.to_version)
    }


def test_migrating_killed_before_each_step(attempt: Attempt, database_url: str, tmp_path: Path) -> None:
    """From the first release, with rows in its tables, to this one."""
    from alembic import command

    from tests.registry.test_events import OLD_ROWS

    engine = database.connect(database_url)
    config = database._alembic_config(MIGRATIONS)

    def first_release(session: database.Session) -> None:
        config.attributes.update(
            connection=session.connection(), version_table=VERSION_TABLE, metadata=Base.metadata
        )
        command.upgrade(config, "0001")
        for statement in OLD_ROWS:
            session.execute(text(statement))

    database.write(engine, first_release)
    before = set(inspect(engine).get_table_names())
    engine.dispose()
    # A migration is one transaction of about a hundred statements: every fifth will do.
    for step in range(1, 1000, 5):
        if attempt("migrate", step):
            break
        assert set(inspect(engine).get_table_names()) == before
        engine.dispose()
    assert step > 20
    with Registry(database_url, tmp_path / "models", migrate=False) as registry:
        assert [move.to_version for move in registry.history("census")] == [1]
        kinds = [event.kind for event in registry.events("census")]
        assert (kinds.count("label.moved"), kinds.count("version.failed")) == (1, 1)
