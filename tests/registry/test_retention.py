"""Which versions gc lets go, and which it never does."""

from pathlib import Path

import pytest

from registry import Registry, Retention, retention
from registry.artifacts import ArtifactStore
from registry.errors import InvalidInput


def ready(registry: Registry) -> list[int]:
    return sorted(version.version for version in registry.versions("census") if version.state == "ready")


@pytest.mark.parametrize(
    ("keep_last", "keep_production", "expected"),
    [
        (None, False, []),
        (2, False, [1, 2, 4]),
        (2, True, [1, 4]),
        (1, True, [1, 4, 5]),
        (9, False, []),
    ],
)
def test_policy_decides_by_age_and_by_what_served(
    keep_last: int | None, keep_production: bool, expected: list[int]
) -> None:
    """Of six versions the second was in production, the third is labelled."""
    policy = Retention("census", keep_last, keep_production)
    gone = retention.expendable(policy, [6, 5, 4, 3, 2, 1], ever_in_production={2}, spared={3})
    assert gone == expected


def test_gc_deletes_by_policy_and_never_what_is_or_was_lately_labelled(census: Registry) -> None:
    census.promote("census", 1, actor="ada")
    census.promote("census", 2, label="canary", actor="ada")
    census.remove_label("census", "canary", actor="ada")
    assert census.gc() == [], "no policy, nothing goes"
    policy = census.set_retention("census", keep_last=1, keep_production=False, actor="ada")
    assert census.retention("census") == policy
    removed = census.gc()
    reason = "retention policy 1: keep the last 1"
    assert [(swept.version, swept.reason) for swept in removed] == [(3, reason), (4, reason)]
    assert ready(census) == [1, 2, 5]
    deleted = census.events("census", kinds=["version.deleted"])
    assert {(event.actor, event.reason) for event in deleted} == {("gc", reason)}
    assert [swept.version for swept in census.gc(recent_seconds=0)] == [2]
    assert ready(census) == [1, 5]


def test_gc_keeps_what_a_rollback_would_go_to(census: Registry) -> None:
    for version in (1, 2, 3):
        census.promote("census", version, actor="ada")
    census.set_retention("census", keep_last=1, keep_production=False, actor="ada")
    census.gc(recent_seconds=0)
    assert ready(census) == [2, 3, 5]
    assert census.rollback("census", actor="ada").to_version == 2


def test_gc_keeps_all_that_ever_were_in_production(census: Registry) -> None:
    for version in (1, 2, 3):
        census.promote("census", version, actor="ada")
    census.set_retention("census", keep_last=1, actor="ada")
    census.gc(recent_seconds=0)
    assert ready(census) == [1, 2, 3, 5]


def test_files_of_a_deleted_version_stay_while_it_may_still_be_served(census: Registry) -> None:
    census.promote("census", 1, actor="ada")
    census.promote("census", 2, actor="ada")
    place = Path(census.version("census", 1).uri)
    census.delete_version("census", 1, actor="ada")
    assert census.gc() == census.sweep() == []
    assert (place / "saved_model.pb").exists()
    assert [swept.uri for swept in census.gc(recent_seconds=0)] == [str(place)]
    assert not place.exists()


def test_dry_run_says_what_gc_then_does_and_changes_nothing(
    census: Registry, saved_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind: let go by the policy, deleted and spared till now, failed, abandoned half-way."""
    for version in (1, 2):
        census.promote("census", version, actor="ada")
    for version in (1, 3):
        with monkeypatch.context() as patched:
            patched.setattr(ArtifactStore, "remove", lambda *_: [])
            census.delete_version("census", version, actor="ada")
    with monkeypatch.context() as patched:
        patched.setattr(ArtifactStore, "install", interrupt)
        with pytest.raises(KeyboardInterrupt):
            census.publish("census", saved_model)
    census.set_retention("census", keep_last=1, actor="ada")
    before = (census.events("census"), census.versions("census"), census.revision())

    foreseen = census.gc(older_than_seconds=0, recent_seconds=0, dry_run=True)

    assert (census.events("census"), census.versions("census"), census.revision()) == before
    assert all(Path(swept.uri, "saved_model.pb").exists() for swept in foreseen)
    size = sum(path.stat().st_size for path in saved_model.rglob("*") if path.is_file())
    assert [(swept.version, swept.reason, swept.size_bytes) for swept in foreseen] == [
        (1, "deleted by ada", size),
        (3, "deleted by ada", size),
        (4, "retention policy 1: keep the last 1 and all that were ever in production", size),
        (6, "abandoned: the publisher was not heard of any more", size),
    ]
    assert census.gc(older_than_seconds=0, recent_seconds=0) == foreseen
    assert not any(Path(swept.uri).exists() for swept in foreseen)
    assert census.gc(older_than_seconds=0, recent_seconds=0, dry_run=True) == []


def interrupt(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_policies_are_versioned_and_checked(census: Registry) -> None:
    assert census.retention("census") == Retention("census", None, True)
    for number in (0, -1):
        with pytest.raises(InvalidInput, match=f"keep the last {number} versions"):
            census.set_retention("census", keep_last=number, actor="ada")
    census.set_retention("census", keep_last=3, actor="ada")
    second = census.set_retention("census", keep_last=None, actor="bob")
    assert (second.revision, second.actor, census.retention("census")) == (2, "bob", second)
    assert census.events("census")[0].details == {"keep_last": None, "keep_production": True, "revision": 2}
