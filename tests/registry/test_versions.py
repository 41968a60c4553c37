"""Models and versions: creating, publishing, reading, deleting."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from registry import FileDigest, Registry
from registry.errors import (
    InvalidInput,
    InvalidName,
    InvalidSavedModel,
    ModelExists,
    ModelNotFound,
    PublishFailed,
    VersionInUse,
    VersionNotFound,
)
from tests.registry.conftest import make_saved_model


def test_publish_copies_the_files_and_keeps_every_fact(registry: Registry, saved_model: Path) -> None:
    registry.create_model("census", "who earns more than 50,000")
    facts = {
        "metrics": {"auc": 0.75, "loss": 0.5, "label/mean": 0.25},
        "params": {"hidden_units": [64, 32], "optimizer": "Adagrad", "dropout": None},
        "step": 4000,
        "job": "job-17",
        "source_revision": "abc123",
        "libraries": {"tensorflow": "2.21.0"},
        "signatures": {"serving_default": {"inputs": {"x": ["float32", [-1, 4]]}}},
        "tags": {"team": "search"},
        "description": "wide and deep",
    }
    published = registry.publish("census", saved_model, **facts)
    assert registry.version("census", 1) == published
    assert {name: getattr(published, name) for name in facts} == facts
    assert (published.model, published.version) == ("census", 1)
    assert (published.state, published.error) == ("ready", "")
    assert published.created_at <= published.ready_at
    files = {path.relative_to(saved_model).as_posix(): path.read_bytes() for path in saved_model.rglob("*.*")}
    copied = Path(published.uri)
    assert {path.relative_to(copied).as_posix() for path in copied.rglob("*.*")} == set(files)
    assert all((copied / name).read_bytes() == content for name, content in files.items())
    assert published.manifest == {
        name: FileDigest(len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()
    }
    assert published.size_bytes == sum(map(len, files.values()))


def test_files_lie_where_serving_looks(registry: Registry, saved_model: Path, tmp_path: Path) -> None:
    registry.create_model("census")
    assert registry.publish("census", saved_model).uri == str(tmp_path / "models" / "census" / "1")
    assert sorted(path.name for path in (tmp_path / "models" / "census").iterdir()) == ["1"]


def test_versions_are_numbered_by_model_and_listed_newest_first(census: Registry, saved_model: Path) -> None:
    census.create_model("flights")
    census.publish("flights", saved_model)
    assert [version.version for version in census.versions("census")] == [5, 4, 3, 2, 1]
    assert [version.version for version in census.versions("flights")] == [1]
    assert [model.name for model in census.models()] == ["census", "flights"]


def test_numbers_are_not_used_again_after_deletion(census: Registry, saved_model: Path) -> None:
    for number in (4, 5):
        census.delete_version("census", number, actor="ada")
    assert census.publish("census", saved_model).version == 6
    assert [version.version for version in census.versions("census")] == [6, 3, 2, 1]
    states = [version.state for version in census.versions("census", include_deleted=True)]
    assert states == ["ready", "deleted", "deleted", "ready", "ready", "ready"]


def test_delete_removes_the_files_and_can_be_repeated(census: Registry) -> None:
    place = Path(census.version("census", 2).uri)
    census.delete_version("census", 2, actor="ada")
    census.delete_version("census", 2, actor="ada")
    assert not place.exists()
    assert census.version("census", 2).state == "deleted"


def test_labelled_versions_cannot_be_deleted(census: Registry) -> None:
    census.promote("census", 2, actor="ada")
    with pytest.raises(VersionInUse, match="it is labelled production; move or remove the label first"):
        census.delete_version("census", 2, actor="ada")
    assert Path(census.version("census", 2).uri, "saved_model.pb").exists()


def test_unknown_models_and_versions_are_named_with_those_that_are_there(census: Registry, saved_model: Path):
    for call in (
        lambda: census.publish("cencus", saved_model),
        lambda: census.versions("cencus"),
        lambda: census.version("cencus", 1),
        lambda: census.labels("cencus"),
        lambda: census.history("cencus"),
        lambda: census.gate("cencus", "production"),
    ):
        with pytest.raises(ModelNotFound, match="Cannot find model 'cencus'; registered: census"):
            call()
    with pytest.raises(VersionNotFound, match="version 9 of model 'census'; newest registered: 5, 4"):
        census.delete_version("census", 9, actor="ada")
    for number in (0, -1, 10**12):
        with pytest.raises(VersionNotFound, match=f"version {number} of"):
            census.resolve("census", number)


def test_creating_a_model_twice_is_refused_unless_it_may_exist(registry: Registry) -> None:
    first = registry.create_model("census", "the first")
    with pytest.raises(ModelExists, match="'census': it exists"):
        registry.create_model("census")
    assert registry.create_model("census", "the second", exist_ok=True) == first


def test_names_unsafe_in_paths_urls_and_configs_are_refused(registry: Registry) -> None:
    for name in ("", ".", "..", ".pending", "a/b", "a b", "a:b", "-a", "é", "x" * 129, "a\n"):
        with pytest.raises(InvalidName, match="as a model name"):
            registry.create_model(name)
    assert registry.models() == []


def test_directories_that_are_no_saved_models_are_refused(registry: Registry, tmp_path: Path) -> None:
    registry.create_model("census")
    empty = tmp_path / "empty"
    empty.mkdir()
    hollow = make_saved_model(tmp_path / "hollow")
    (hollow / "saved_model.pb").write_bytes(b"")
    linked = make_saved_model(tmp_path / "linked")
    (linked / "assets").symlink_to(tmp_path)
    dangling = make_saved_model(tmp_path / "dangling")
    (dangling / "vocabulary.txt").symlink_to(tmp_path / "nowhere")
    for directory, problem in (
        (tmp_path / "missing", "there is no such directory"),
        (empty, "it contains no saved_model.pb"),
        (hollow, "its saved_model.pb is empty"),
        (linked, "the directory 'assets' in it is a link"),
        (dangling, "'vocabulary.txt' in it is no regular file"),
    ):
        with pytest.raises(InvalidSavedModel, match=problem):
            registry.publish("census", directory)
    assert registry.versions("census") == []


def test_text_saved_models_are_accepted(registry: Registry, tmp_path: Path) -> None:
    directory = tmp_path / "text"
    directory.mkdir()
    (directory / "saved_model.pbtxt").write_text("saved_model_schema_version: 1")
    registry.create_model("census")
    assert registry.publish("census", directory).state == "ready"


def test_metrics_and_params_may_hold_what_training_produces(registry: Registry, saved_model: Path) -> None:
    registry.create_model("census")
    metrics = {"auc": np.float32(0.5), "loss": math.nan, "perplexity": math.inf, "steps": np.int64(7)}
    params = {"units": (64, np.int64(32)), "clip_norm": math.inf, "rate": np.float64(0.5)}
    registry.publish("census", saved_model, metrics=metrics, params=params, step=np.int64(7))
    version = registry.version("census", 1)
    assert math.isnan(version.metrics["loss"])
    assert {**version.metrics, "loss": 0} == {"auc": 0.5, "loss": 0, "perplexity": math.inf, "steps": 7}
    assert version.params == {"units": [64, 32], "clip_norm": "inf", "rate": 0.5}
    assert version.step == 7


def test_facts_that_cannot_be_kept_are_refused_before_anything_is_done(
    registry: Registry, saved_model: Path
) -> None:
    registry.create_model("census")
    for facts, message in (
        ({"metrics": {"auc": "0.7"}}, r"metrics\['auc'\]: '0.7' is no number"),
        ({"metrics": {"auc": [0.7]}}, r"metrics\['auc'\]: \[0.7\] is no number"),
        ({"params": {"optimizer": object}}, r"params\['optimizer'\]: .* of type type has no JSON form"),
        ({"params": {1: 2}}, "params: the key 1 is no string"),
        ({"tags": {"team": 1}}, r"tags\['team'\] = 1: keys and values must be strings"),
        ({"step": -1}, "step -1"),
        ({"description": "\0"}, "description: .* contains NUL"),
        ({"params": {"name": "\udc80"}}, r"params\['name'\]: .* not Unicode"),
    ):
        with pytest.raises(InvalidInput, match=message):
            registry.publish("census", saved_model, **facts)
    assert registry.versions("census") == []


def test_only_tags_and_description_of_a_version_change(census: Registry) -> None:
    before = census.version("census", 1)
    after = census.describe_version("census", 1, tags={"team": "search"}, description="the first")
    assert (after.tags, after.description) == ({"team": "search"}, "the first")
    assert census.describe_version("census", 1, description="the very first").tags == {"team": "search"}
    unchanged = set(vars(before)) - {"tags", "description"}
    assert all(getattr(after, name) == getattr(before, name) for name in unchanged)


def test_publish_that_fails_half_way_leaves_a_failed_version_and_no_files(
    registry: Registry, saved_model: Path, tmp_path: Path
) -> None:
    """A file has the name of the model's folder, so the last step, the move into place, fails."""
    registry.create_model("census")
    (tmp_path / "models").mkdir(exist_ok=True)
    (tmp_path / "models" / "census").write_bytes(b"")
    with pytest.raises(PublishFailed, match="Cannot publish version 1 of model 'census': "):
        registry.publish("census", saved_model)
    assert registry.version("census", 1).state == "failed"
    assert not list((tmp_path / "models" / ".pending" / "census").iterdir())
    (tmp_path / "models" / "census").unlink()
    assert registry.publish("census", saved_model).version == 2


def test_files_of_versions_that_a_lost_database_knew_are_kept(
    registry: Registry, saved_model: Path, tmp_path: Path
) -> None:
    """Their numbers are not given again; and should they appear later than that, they still are not ours."""
    place = tmp_path / "models" / "census"
    for name in ("1", "7", "notes", "99999999999"):
        (place / name).mkdir(parents=True)
        (place / name / "stranger").write_bytes(b"")
    registry.create_model("census")
    assert registry.publish("census", saved_model).version == 8

    def appear(*_: object) -> None:
        (place / "9").mkdir()
        (place / "9" / "stranger").write_bytes(b"")

    with pytest.MonkeyPatch.context() as during:
        during.setattr("registry.artifacts.ArtifactStore.verify_upload", appear)
        with pytest.raises(PublishFailed, match=r"version 9 of model 'census': FileExistsError: .* already"):
            registry.publish("census", saved_model)
    assert registry.publish("census", saved_model).version == 10
    assert sorted(str(path.parent.name) for path in place.glob("*/stranger")) == [
        "1",
        "7",
        "9",
        "99999999999",
        "notes",
    ]
