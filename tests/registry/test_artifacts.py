"""The artifact store, the same on a local disk and on another of fsspec's stores."""

from pathlib import Path

import fsspec
import pytest

from registry import Registry
from registry.artifacts import ArtifactStore, CorruptUpload
from registry.errors import InvalidInput
from tests.registry.conftest import make_saved_model


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "models") if request.param == "local" else f"memory://{tmp_path.name}/models"


@pytest.fixture
def store(root: str) -> ArtifactStore:
    return ArtifactStore(root)


def nothing() -> None:
    pass


def test_published_files_can_be_read_at_the_uri(store: ArtifactStore, saved_model: Path) -> None:
    manifest = store.upload(saved_model, "census", 7, nothing)
    store.verify_upload("census", 7, manifest, nothing)
    assert not store.has_saved_model("census", 7)
    store.install("census", 7)
    assert store.has_saved_model("census", 7)
    assert store.uri("census", 7) == f"{store.base_path('census')}/7"
    files, path = fsspec.url_to_fs(store.uri("census", 7))
    found = {str(name)[len(path) + 1 :]: files.cat_file(name) for name in files.find(path)}
    assert found == {
        "saved_model.pb": b"graph",
        "variables/variables.data-00000-of-00001": b"weights",
        "variables/variables.index": b"index",
    }


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing", "added"])
def test_damage_between_upload_and_verification_is_found(
    store: ArtifactStore, root: str, saved_model: Path, damage: str
) -> None:
    manifest = store.upload(saved_model, "census", 1, nothing)
    files, path = fsspec.url_to_fs(f"{root}/.pending/census/1")
    if damage == "missing":
        files.rm_file(f"{path}/saved_model.pb")
    else:
        name = "assets.txt" if damage == "added" else "saved_model.pb"
        files.pipe_file(f"{path}/{name}", b"grapH" if damage == "changed" else b"gra")
    with pytest.raises(CorruptUpload):
        store.verify_upload("census", 1, manifest, nothing)


def test_a_place_that_is_taken_is_not_overwritten(
    store: ArtifactStore, saved_model: Path, tmp_path: Path
) -> None:
    other = make_saved_model(tmp_path / "other", b"other weights")
    for directory in (saved_model, other):
        store.upload(directory, "census", 1, nothing)
        if directory is saved_model:
            store.install("census", 1)
    with pytest.raises(FileExistsError, match="is there already"):
        store.install("census", 1)


def test_leftovers_of_an_earlier_upload_do_not_get_into_the_next(
    store: ArtifactStore, saved_model: Path, tmp_path: Path
) -> None:
    other = make_saved_model(tmp_path / "other")
    (other / "leftover").write_bytes(b"x")
    store.upload(other, "census", 1, nothing)
    manifest = store.upload(saved_model, "census", 1, nothing)
    store.verify_upload("census", 1, manifest, nothing)


def test_removing_says_what_there_was(store: ArtifactStore, saved_model: Path) -> None:
    store.upload(saved_model, "census", 1, nothing)
    store.install("census", 1)
    store.upload(saved_model, "census", 2, nothing)
    assert store.leftover_candidates("census") == {1, 2}
    assert store.remove("census", 1) == [store.uri("census", 1)]
    assert len(store.remove("census", 2)) == 1
    assert store.remove("census", 3) == []
    assert store.leftover_candidates("census") == set()


def test_registry_works_on_any_store(root: str, saved_model: Path, tmp_path: Path) -> None:
    with Registry(f"sqlite:///{tmp_path}/registry.db", root) as registry:
        registry.create_model("census")
        for _ in range(2):
            registry.publish("census", saved_model)
        registry.promote("census", 1, actor="ada")
        registry.promote("census", 2, actor="ada")
        registry.rollback("census", actor="ada")
        registry.delete_version("census", 2, actor="ada")
        assert registry.sweep() == [], "a label has just left it"
        assert [swept.version for swept in registry.gc(recent_seconds=0)] == [2]
        assert registry.serving_targets()[0].versions == (1,)
        assert ArtifactStore(root).leftover_candidates("census") == {1}


def test_progress_is_told_while_a_large_file_is_copied(store: ArtifactStore, tmp_path: Path) -> None:
    told: list[int] = []
    directory = make_saved_model(tmp_path / "large", bytes(3 << 20))
    store.upload(directory, "census", 1, lambda: told.append(1))
    assert len(told) == 5, "three chunks of weights, two small files"


def test_unknown_protocols_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Cannot use 'gopher://models' as the artifact root"):
        Registry(f"sqlite:///{tmp_path}/registry.db", "gopher://models")
