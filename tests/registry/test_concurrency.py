"""Many processes and threads on one registry: no errors of the database, and a history that replays."""

import multiprocessing
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry import Registry
from registry.errors import Conflict, RegistryError

PROCESSES, THREADS, OPERATIONS = 3, 4, 12


def work(database_url: str, root: str, saved_model: str, seed: int) -> Counter[str]:
    """Run in each process: threads that register, promote and roll back one model; return what came of it."""
    with Registry(database_url, root) as registry:
        registry.create_model("census", exist_ok=True)

        def act(thread: int) -> Counter[str]:
            chance, outcomes = random.Random(f"{seed}-{thread}"), Counter[str]()
            for _ in range(OPERATIONS):
                outcomes[act_once(registry, saved_model, chance)] += 1
            return outcomes

        with ThreadPoolExecutor(THREADS) as threads:
            return sum(threads.map(act, range(THREADS)), Counter())


def act_once(registry: Registry, saved_model: str, chance: random.Random) -> str:
    action = chance.choice(["publish", "promote", "promote expecting", "rollback", "undo"])
    try:
        if action == "publish":
            registry.publish("census", saved_model)
        elif action == "promote":
            registry.promote("census", chance.choice(registry.versions("census")).version, actor="ada")
        elif action == "promote expecting":
            expect = registry.labels("census").get("production")
            version = chance.choice(registry.versions("census")).version
            registry.promote("census", version, expect=expect, actor="ada")
        elif action == "rollback":
            registry.rollback("census", actor="ada")
        else:
            registry.undo_promotion(registry.history("census", limit=1)[0], "by chance")
    except Conflict as error:
        return f"{action}: {type(error).__name__}"
    except IndexError:
        return f"{action}: nothing there yet"
    return action


def test_processes_and_threads_keep_versions_labels_and_history_together(
    database_url: str, saved_model: Path, tmp_path: Path
) -> None:
    spawned = multiprocessing.get_context("spawn")
    arguments = [
        (database_url, str(tmp_path / "models"), str(saved_model), seed) for seed in range(PROCESSES)
    ]
    with spawned.Pool(PROCESSES) as pool:
        # The processes start on an empty database: the first to come makes the tables.
        outcomes = sum(pool.starmap_async(work, arguments).get(timeout=240), Counter())
    assert outcomes.total() == PROCESSES * THREADS * OPERATIONS
    with Registry(database_url, tmp_path / "models") as registry:
        versions = registry.versions("census", include_deleted=True)
        assert [version.version for version in versions] == list(range(outcomes["publish"], 0, -1))
        assert {version.state for version in versions} == {"ready"}
        replayed = None
        for move in reversed(registry.history("census")):
            assert move.from_version == replayed, "each move starts where the one before it ended"
            replayed = move.to_version
        assert registry.labels("census") == ({} if replayed is None else {"production": replayed})
        assert outcomes["promote"] > 0
        assert outcomes["rollback"] > 0


def test_of_many_that_expect_the_same_one_wins(census: Registry) -> None:
    census.promote("census", 1, actor="ada")

    def promote(version: int) -> str:
        try:
            return f"won by {census.promote('census', version, expect=1, actor='ada').to_version}"
        except RegistryError as error:
            return type(error).__name__

    with ThreadPoolExecutor(4) as threads:
        outcomes = Counter(threads.map(promote, [2, 3, 4, 5]))
    winner = census.labels("census")["production"]
    assert outcomes == {f"won by {winner}": 1, "LabelMoved": 3}


def test_many_may_create_the_same_model(registry: Registry) -> None:
    with ThreadPoolExecutor(8) as threads:
        models = set(threads.map(lambda _: registry.create_model("census", exist_ok=True), range(16)))
    assert len(models) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_models_are_changed_at_the_same_time(
    census: Registry, saved_model: Path, database_url: str, tmp_path: Path
) -> None:
    """On PostgreSQL the lock is the model's own: a long transaction on one model does not hold up another."""
    from registry import database, versions

    census.create_model("flights")
    census.publish("flights", saved_model)
    engine = database.connect(database_url)

    def while_census_is_locked(session: database.Session) -> int | None:
        versions.find_model(session, "census", lock=True)
        return census.promote("flights", 1, actor="ada").to_version

    assert database.write(engine, while_census_is_locked) == 1
    engine.dispose()
