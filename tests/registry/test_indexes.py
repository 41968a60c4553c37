"""Which indexes answer: of every statement that an operation makes, SQLite is asked how it would go about it.

Without statistics, which nobody has gathered here, SQLite plans by the schema alone: the plans are those of a
registry with a long past. `benchmarks.registry` measures on one.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.dialects import sqlite

from registry import Registry, database, searching
from registry.conditions import Condition
from registry.events import events_query
from registry.store import migrate_registry

MAY_BE_READ_WHOLE = {
    "registry_revision": "it has one row",
    "registry_webhooks": "it has as many rows as people have added receivers",
    "registry_models": "all models are asked for",
    "registry_labels": "serving wants the labels of all models",
}
OPERATIONS: dict[str, Callable[[Registry], object]] = {
    "list": lambda registry: registry.search_versions("census"),
    "list by metric": lambda registry: registry.search_versions("census", order="-metrics.auc"),
    "list under a label": lambda registry: registry.search_versions("census", label="production"),
    "models": lambda registry: registry.search_models(),
    "show": lambda registry: (registry.version("census", 2), registry.labels("census")),
    "resolve": lambda registry: registry.resolve("census", "production"),
    "promote": lambda registry: registry.promote("census", 3, actor="ada"),
    "rollback": lambda registry: registry.rollback("census", actor="ada"),
    "rollback to a version": lambda registry: registry.rollback("census", to=1, actor="ada"),
    "undo": lambda registry: registry.undo_promotion(registry.history("census", limit=1)[0], "it fails"),
    "remove a label": lambda registry: registry.remove_label("census", "production", actor="ada"),
    "history": lambda registry: registry.history("census", limit=50),
    "history of a label": lambda registry: registry.history("census", "production", limit=50),
    "history of a version": lambda registry: registry.history("census", version=2, limit=50),
    "events": lambda registry: registry.events("census", limit=50),
    "events of a version": lambda registry: registry.events("census", version=2, limit=50),
    "check a gate": lambda registry: registry.check_gate("census", 3, "production"),
    "approve": lambda registry: registry.approve("census", 3, "production", "ada"),
    "tag": lambda registry: registry.describe_version("census", 3, tags={"a": "b"}),
    "delete": lambda registry: registry.delete_version("census", 4, "ada"),
    "gc without removing": lambda registry: registry.gc(dry_run=True),
    "gc": lambda registry: registry.gc(),
    "revision": lambda registry: registry.revision(),
    "targets": lambda registry: registry.serving_targets(),
    "deliveries": lambda registry: (registry.claim_delivery(), registry.seconds_until_due(1.0)),
}


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/registry.db"


@contextmanager
def statements_of(engine: Engine) -> Iterator[list[tuple[str, object]]]:
    """Collect what is sent to the database, with its parameters."""
    sent: list[tuple[str, object]] = []

    def note(_connection, _cursor, statement, parameters, _context, _many) -> None:
        sent.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_statement_of_an_operation_reads_a_long_table_from_end_to_end(
    census: Registry, operation: str, tmp_path: Path
) -> None:
    census.set_retention("census", keep_last=4, keep_production=True, actor="ada")
    for number in (1, 2):
        census.promote("census", number, actor="ada")
    with statements_of(census._engine) as sent:
        OPERATIONS[operation](census)
    told = [(statement, parameters) for statement, parameters in sent if not statement.startswith("BEGIN")]
    assert told
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        for statement, parameters in told:
            steps = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            scanned = set(re.findall(r"SCAN (registry_[a-z_]+)", "; ".join(steps)))
            assert scanned <= MAY_BE_READ_WHOLE.keys(), (statement, steps)
            bare = [
                step for step in steps if re.search(r"registry_(promotions|events)\b.*\(model=\?\)", step)
            ]
            assert not bare or "LIMIT" in statement, (
                "it walks through all the past of a model",
                statement,
                bare,
            )
    connection.close()


def test_gc_finds_recent_moves_by_their_time(census: Registry, tmp_path: Path) -> None:
    with statements_of(census._engine) as sent:
        census.gc()
    (recent,) = [(text, given) for text, given in sent if "registry_promotions.at >" in text]
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        steps = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {recent[0]}", recent[1])]
    connection.close()
    assert steps == [
        "SEARCH registry_promotions USING INDEX ix_registry_promotions_model_at (model=? AND at>?)"
    ]


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"kinds": ["gate.refused", "label.moved"]}, r"registry_events_model_kind_id \(model=\? AND kind=\?"),
        ({"label": "canary"}, r"registry_events_model_label_id \(model=\? AND label=\?"),
        (
            {"kinds": ["gate.refused"], "label": "canary", "before": 9},
            r"registry_events_model_label_kind_id \(model=\? AND label=\? AND kind=\? AND id<\?",
        ),
    ],
)
def test_events_of_a_kind_or_label_are_found_by_an_index(
    database_url: str, filters: dict, index: str
) -> None:
    engine = database.connect(database_url)
    migrate_registry(engine)
    given = {"kinds": (), "version": None, "label": None, "before": None, "limit": 50, **filters}
    shown = plan(engine, events_query("flights", **given))
    engine.dispose()
    assert re.search(index, shown), shown
    assert "SCAN registry" not in shown
    assert "ORDER BY" not in shown


def plan(engine: database.Engine, query) -> str:
    """Return how SQLite would answer the query, step by step."""
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}")
        return "; ".join(row[-1] for row in steps)


@pytest.mark.parametrize(
    ("filters", "order", "after", "index"),
    [
        (
            {},
            "-version",
            [500],
            r"registry_versions USING INDEX sqlite_autoindex\w+ \(model=\? AND version<\?\)",
        ),
        ({"job": "j"}, "-version", None, r"ix_registry_versions_model_job_version \(model=\? AND job=\?"),
        ({"states": ("failed",)}, "version", None, r"ix_registry_versions_model_state_version \(model=\?"),
        ({}, "-created", None, r"ix_registry_versions_model_created_at_version \(model=\?"),
        (
            {},
            "-metrics.auc",
            [0.5, 7],
            r"COVERING INDEX ix_registry_version_metrics_model_name_value_version",
        ),
        (
            {"metrics": (Condition("auc", ">", 0.7),)},
            "-version",
            None,
            r"COVERING INDEX ix_registry_version_metrics_\w+ \(model=\? AND name=\? AND value>\?\)",
        ),
        (
            {"tags": {"team": "ads"}},
            "-version",
            None,
            r"ix_registry_version_tags_model_key_version \(model=\?",
        ),
    ],
)
def test_each_search_on_sqlite_is_answered_by_an_index(
    database_url: str, filters: dict, order: str, after: list | None, index: str
) -> None:
    engine = database.connect(database_url)
    migrate_registry(engine)
    wanted, by = searching.VersionFilter(**filters), searching.Order.parse(order)
    shown = plan(engine, searching.versions_query("flights", wanted, by, 100, after))
    engine.dispose()
    assert re.search(index, shown), shown
    assert "SCAN registry" not in shown
    assert "TEMP B-TREE" not in shown
