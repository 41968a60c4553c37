"""Many processes and threads on one registry: no errors of the database, and a history that replays."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.registry_stress import stress
from registry import Registry
from registry.errors import RegistryError


def test_processes_and_threads_keep_versions_labels_and_history_together(
    database_url: str, tmp_path: Path
) -> None:
    """The stress run of the benchmarks, for a short time."""
    verdict = stress(database_url, tmp_path / "stress", processes=3, threads=4, seconds=3.0)
    assert verdict.problems == []
    assert {"publish", "promote", "rollback"} <= set(verdict.outcomes)


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
        models = list(threads.map(lambda _: registry.create_model("census", exist_ok=True), range(16)))
    assert models == [registry.models()[0]] * 16


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
