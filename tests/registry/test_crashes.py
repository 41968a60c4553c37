"""Processes killed by SIGKILL in the middle of an operation: nothing half is visible, all can be repeated."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from registry import Registry
from tests.registry.dying_process import PUBLISHING


@pytest.fixture
def kill_at(database_url: str, saved_model: Path, tmp_path: Path):
    """Run a process that is killed at the step."""

    def run(step: str) -> None:
        command = [sys.executable, "-m", "tests.registry.dying_process", step, database_url]
        killed = subprocess.run([*command, str(tmp_path / "models"), str(saved_model)], timeout=120)
        assert killed.returncode == -signal.SIGKILL

    return run


@pytest.fixture
def two_versions(registry: Registry, saved_model: Path) -> Registry:
    """A registry whose model `census` has two versions, the first in production."""
    registry.create_model("census")
    for _ in range(2):
        registry.publish("census", saved_model)
    registry.promote("census", 1, actor="ada")
    return registry


def directories(root: Path) -> set[str]:
    """Return the version directories that have files, pending ones too."""
    return {path.parent.relative_to(root).as_posix() for path in root.rglob("saved_model.pb")}


def test_publishing_killed_at_any_step_leaves_nothing_that_can_be_served(
    two_versions: Registry, kill_at, saved_model: Path, tmp_path: Path
) -> None:
    root, last = tmp_path / "models", 2
    for step in PUBLISHING:
        kill_at(step)
        newest = two_versions.versions("census")[0]
        assert (newest.version, newest.state) in [(last, "ready"), (last + 1, "pending")]
        two_versions.sweep(older_than_seconds=0)
        ready = [version for version in two_versions.versions("census") if version.state == "ready"]
        assert ready[0].version == last
        assert directories(root) == {f"census/{version.version}" for version in ready}
        last = two_versions.publish("census", saved_model).version
        two_versions.promote("census", last, actor="ada")
    numbers = [version.version for version in two_versions.versions("census")]
    assert numbers == list(range(len(numbers), 0, -1))
    abandoned = [version.error for version in two_versions.versions("census") if version.state == "failed"]
    assert set(abandoned) == {"abandoned: the publisher was not heard of any more"}
    assert len(abandoned) == len(PUBLISHING) - 1, "the first is killed before it has a number"


def test_move_killed_before_its_commit_has_not_happened_and_can_be_repeated(
    two_versions: Registry, kill_at
) -> None:
    revision = two_versions.revision()
    kill_at("before a move is committed")
    assert two_versions.labels("census") == {"production": 1}
    assert (len(two_versions.history("census")), two_versions.revision()) == (1, revision)
    assert two_versions.promote("census", 2, expect=1, actor="ada").to_version == 2


def test_deletion_and_sweep_killed_half_way_are_finished_by_the_next_sweep(
    two_versions: Registry, kill_at, tmp_path: Path
) -> None:
    kill_at("before the files of a deleted version are removed")
    assert two_versions.version("census", 2).state == "deleted"
    kill_at("before the swept files are removed")
    assert directories(tmp_path / "models") == {"census/1", "census/2"}
    (swept,) = two_versions.sweep()
    assert (swept.model, swept.version, swept.reason) == ("census", 2, "deleted by eve")
    assert directories(tmp_path / "models") == {"census/1"}


def test_sweep_leaves_publishers_at_work_and_strangers_alone(
    two_versions: Registry, kill_at, tmp_path: Path
) -> None:
    kill_at("before the files are verified")
    stranger = tmp_path / "models" / "census" / "77"
    stranger.mkdir()
    (stranger / "saved_model.pb").write_bytes(b"restored from a backup")
    assert two_versions.sweep() == []
    assert directories(tmp_path / "models") == {"census/1", "census/2", "census/77", ".pending/census/3"}
    (swept,) = two_versions.sweep(older_than_seconds=0)
    assert swept.uri == str(tmp_path / "models" / ".pending" / "census" / "3")
    assert directories(tmp_path / "models") == {"census/1", "census/2", "census/77"}


def test_publisher_taken_for_dead_does_not_come_back(
    two_versions: Registry, saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from registry.artifacts import ArtifactStore
    from registry.errors import PublishFailed

    install = ArtifactStore.install

    def install_late(store: ArtifactStore, model: str, version: int) -> None:
        two_versions.sweep(older_than_seconds=0)
        store.upload(saved_model, model, version, lambda: None)
        install(store, model, version)

    monkeypatch.setattr(ArtifactStore, "install", install_late)
    with pytest.raises(PublishFailed, match=r"declared failed meanwhile.*abandoned"):
        two_versions.publish("census", saved_model)
    assert two_versions.version("census", 3).state == "failed"
    assert directories(tmp_path / "models") == {"census/1", "census/2"}
