"""A full disk, or a store that goes away, in the middle of an upload; and what such a store stops."""

import os
import pickle
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from registry import Registry, versions
from registry.errors import ArtifactsUnavailable, FilesNotRemoved, PublishFailed, RollbackRefused
from tests.registry.broken_store import DISK_FULL, GONE, UNREACHABLE, BrokenFileSystem
from tests.registry.conftest import make_saved_model


@pytest.fixture
def broken(database_url: str, tmp_path: Path) -> Iterator[Registry]:
    """A registry on a store that can be broken."""
    BrokenFileSystem.break_with(None, 0)
    with Registry(database_url, f"broken://{tmp_path.name}/models") as opened:
        opened.create_model("census")
        yield opened
    BrokenFileSystem.break_with(None, 0)


@pytest.mark.parametrize("trouble", [DISK_FULL, GONE, UNREACHABLE], ids=["full", "gone", "unreachable"])
@pytest.mark.parametrize("files_left", [0, 1, 2])
def test_trouble_in_an_upload_is_told_and_leaves_a_failed_version(
    broken: Registry, saved_model: Path, tmp_path: Path, trouble: Exception, files_left: int
) -> None:
    BrokenFileSystem.break_with(trouble, files_left)
    with pytest.raises(PublishFailed) as caught:
        broken.publish("census", saved_model)
    assert str(trouble) in str(caught.value)
    failed = broken.version("census", 1)
    assert (failed.state, failed.error) == ("failed", f"{type(trouble).__name__}: {trouble}")
    BrokenFileSystem.break_with(None, 0)
    broken.gc(older_than_seconds=0)
    assert not BrokenFileSystem().find(f"{tmp_path.name}/models")
    assert broken.publish("census", saved_model).version == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[str]:
    """A real file system of 256 KiB where we may mount one; else one that says that it is full."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        yield str(place / "models")
        subprocess.run(["umount", str(place)], check=True)
        return
    BrokenFileSystem.break_with(DISK_FULL, 1)
    yield f"broken://{tmp_path.name}/small"
    BrokenFileSystem.break_with(None, 0)


def test_full_disk_fails_the_version_and_frees_what_was_written(small_disk: str, tmp_path: Path) -> None:
    large = make_saved_model(tmp_path / "large", bytes(1 << 20))
    with Registry(f"sqlite:///{tmp_path}/registry.db", small_disk) as registry:
        registry.create_model("census")
        with pytest.raises(PublishFailed, match=r"Cannot publish version 1 .*No space left on device"):
            registry.publish("census", large)
        assert registry.version("census", 1).state == "failed"
        BrokenFileSystem.break_with(None, 0)
        assert registry.gc(older_than_seconds=0) == [], "there was nothing left to remove"
        small = make_saved_model(tmp_path / "little")
        assert registry.publish("census", small).version == 2


@pytest.mark.parametrize("trouble", [GONE, UNREACHABLE], ids=["gone", "unreachable"])
def test_a_store_that_is_away_stops_all_but_rollback_and_deletion(
    broken: Registry, saved_model: Path, tmp_path: Path, trouble: Exception
) -> None:
    """Whatever the store raises: what serves is most likely still loaded, and must be left to go back."""
    for number in (1, 2, 3):
        broken.publish("census", saved_model)
        broken.promote("census", number, actor="ada")
    broken.publish("census", saved_model)
    BrokenFileSystem.break_with(trouble, -1)
    told = f"Cannot get at the files in .*{type(trouble).__name__}: {trouble}"
    for refused in (
        lambda: broken.promote("census", 1, actor="ada"),
        lambda: broken.verify("census"),
        lambda: broken.damages("census", 1),
        lambda: broken.export_version("census", 1, tmp_path / "out"),
        lambda: broken.gc(dry_run=True),
        lambda: broken.gc(),
    ):
        with pytest.raises(ArtifactsUnavailable, match=told):
            refused()
    assert not (tmp_path / "out").exists()
    assert broken.rollback("census", actor="ada").to_version == 2
    with pytest.raises(FilesNotRemoved, match=r"is deleted, but its files in .*gc tries again"):
        broken.delete_version("census", 4, actor="ada")
    assert broken.version("census", 4).state == "deleted"
    BrokenFileSystem.break_with(None, 0)
    assert [swept.version for swept in broken.gc()] == [4]


@pytest.fixture
def hung(broken: Registry, saved_model: Path) -> Iterator[Registry]:
    """Version 2 of census serves, 1 before it, and the store has stopped answering."""
    for number in (1, 2):
        broken.publish("census", saved_model)
        broken.promote("census", number, actor="ada")
    BrokenFileSystem.asked.clear()
    BrokenFileSystem.hold.clear()
    yield broken
    BrokenFileSystem.hold.set()


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_nobody_waits_for_a_move_that_waits_for_the_store(
    hung: Registry, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """On SQLite a transaction that writes keeps everybody else from writing."""
    monkeypatch.setattr(versions, "STORE_SECONDS", 60.0)
    with ThreadPoolExecutor() as pool:
        version = {"version": 1} if action == "promote" else {}
        move = pool.submit(getattr(hung, action), "census", **version, actor="ada")
        assert BrokenFileSystem.asked.wait(timeout=60)
        hung.describe_version("census", 1, tags={"written": "meanwhile"})
        assert not move.done()
        BrokenFileSystem.hold.set()
        assert move.result(timeout=60).action == action
    assert hung.labels("census") == {"production": 1}
    assert hung.version("census", 1).tags == {"written": "meanwhile"}


def test_rollback_goes_without_the_word_of_a_store_that_hangs(
    hung: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "STORE_SECONDS", 0.05)
    with pytest.raises(ArtifactsUnavailable, match=r"TimeoutError: no answer within 0\.05 s"):
        hung.promote("census", 1, actor="ada")
    assert hung.rollback("census", actor="ada").to_version == 1


def test_rollback_looks_at_the_files_of_where_it_goes_in_the_end(
    broken: Registry, saved_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else rolls back while the files are looked at: then other files count."""
    for number in (1, 2, 3):
        broken.publish("census", saved_model)
        broken.promote("census", number, actor="ada")
    BrokenFileSystem().rm(f"{broken.version('census', 1).uri}/saved_model.pb")
    look, others = versions.check_files, [lambda: broken.rollback("census", actor="bob")]

    def look_and_be_overtaken(*arguments: Any) -> None:
        look(*arguments)
        if others:
            others.pop()()

    monkeypatch.setattr(versions, "check_files", look_and_be_overtaken)
    with pytest.raises(
        RollbackRefused, match="version 1 served before, but no longer can: there is no Saved"
    ):
        broken.rollback("census", actor="ada")
    assert [move.actor for move in broken.history("census")][:2] == ["bob", "ada"]


def test_files_that_cannot_be_removed_keep_no_others_from_going(
    broken: Registry, saved_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        broken.publish("census", saved_model)
    broken.set_retention("census", keep_last=1, actor="ada")
    with monkeypatch.context() as patched:
        patched.setattr(BrokenFileSystem, "stuck", "census/1")
        stuck, gone = broken.gc()
    assert (stuck.version, gone.version) == (1, 2)
    assert "Permission denied" in stuck.error
    assert gone.error == ""
    (again,) = broken.gc()
    assert (again.version, again.error) == (1, "")
    with pytest.raises(FilesNotRemoved) as caught:
        raise pickle.loads(pickle.dumps(FilesNotRemoved("census", 1, "memory://1", "no")))
    assert str(caught.value).startswith("Version 1 of model 'census' is deleted, but its files in ")
