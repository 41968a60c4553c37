"""Damage to the files of versions: found by verify, before promotion, before rollback; and export, import."""

from pathlib import Path

import pytest

from registry import Registry
from registry.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    InvalidInput,
    InvalidSavedModel,
    RollbackRefused,
    VersionNotReady,
)
from tests.registry.conftest import make_saved_model

WEIGHTS = "variables/variables.data-00000-of-00001"


def damage(registry: Registry, version: int, kind: str) -> None:
    place = Path(registry.version("census", version).uri)
    if kind == "missing":
        (place / WEIGHTS).unlink()
    elif kind == "extra":
        (place / "assets").mkdir()
        (place / "assets" / "notes.txt").write_text("by hand")
    else:
        (place / WEIGHTS).write_bytes(b"weigh" if kind == "truncated" else b"Weights")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("missing", f"{WEIGHTS} is missing"),
        ("truncated", f"{WEIGHTS} is truncated (5 bytes instead of 7)"),
        ("changed", f"{WEIGHTS} is changed (its SHA-256 is another)"),
        ("extra", "assets/notes.txt is extra (not published)"),
    ],
)
def test_verify_names_every_file_that_is_not_as_published(census: Registry, kind: str, told: str) -> None:
    assert [entry.intact for entry in census.verify("census")] == [True] * 5
    damage(census, 2, kind)
    assert [entry.version for entry in census.verify("census") if not entry.intact] == [2]
    (entry,) = census.verify("census", 2)
    assert [str(each) for each in entry.damages] == [told]
    assert [str(each) for each in census.damages("census", 2)] == ([] if kind == "extra" else [told])
    assert bool(census.damages("census", 2, hashes_up_to_bytes=0)) == (kind in ("missing", "truncated"))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_verify_looks_at_ready_versions_only(census: Registry) -> None:
    census.delete_version("census", 3, actor="ada")
    assert [entry.version for entry in census.verify("census")] == [1, 2, 4, 5]
    with pytest.raises(VersionNotReady, match="it is deleted"):
        census.verify("census", 3)


def test_damaged_versions_are_neither_promoted_nor_rolled_back_to(census: Registry) -> None:
    census.promote("census", 1, actor="ada")
    census.promote("census", 2, actor="ada")
    damage(census, 1, "missing")
    damage(census, 3, "truncated")
    with pytest.raises(ArtifactDamaged, match=r"version 3 .* is truncated \(5 bytes instead of 7\)"):
        census.promote("census", 3, actor="ada")
    with pytest.raises(RollbackRefused, match=r"version 1 served before, but.*-of-00001 is missing"):
        census.rollback("census", actor="ada")
    damage(census, 4, "extra")
    census.promote("census", 4, actor="ada")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_export_copies_exactly_what_was_published(
    census: Registry, saved_model: Path, tmp_path: Path
) -> None:
    damage(census, 1, "extra")
    target = census.export_version("census", 1, tmp_path / "out" / "census-1")
    assert target == tmp_path / "out" / "census-1"

    def files(folder: Path) -> dict[str, bytes]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    assert files(target) == files(saved_model)
    assert [path.name for path in target.parent.iterdir()] == ["census-1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_export_of_a_damaged_version_leaves_nothing(census: Registry, tmp_path: Path) -> None:
    damage(census, 1, "changed")
    damage(census, 2, "missing")
    for version, file in ((1, "is changed"), (2, "is missing")):
        with pytest.raises(ArtifactDamaged, match=file):
            census.export_version("census", version, tmp_path / "out" / "census")
    (Path(census.version("census", 3).uri) / "saved_model.pb").unlink()
    with pytest.raises(ArtifactMissing):
        census.export_version("census", 3, tmp_path / "out" / "census")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(InvalidInput, match="there and not empty"):
        census.export_version("census", 4, tmp_path / "models")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_import_refuses_what_is_no_saved_model(registry: Registry, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "saved_model.pbtxt").write_text("saved_model_schema_version: 1")
    for directory, problem in (
        (make_saved_model(tmp_path / "fake"), "damaged, or something else"),
        (text, "it contains no saved_model.pb"),
        (tmp_path / "missing", "no such directory"),
    ):
        with pytest.raises(InvalidSavedModel, match=problem):
            registry.import_model("census", directory)
    assert registry.models() == []
