"""The history of everything: each change is an event, with who, when, from, to and why."""

import errno
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from registry import Registry, database
from registry.artifacts import ArtifactStore
from registry.errors import GateRefused, InvalidInput, ModelNotFound, PublishFailed
from registry.store import MIGRATIONS, VERSION_TABLE, migrate_registry
from registry.tables import Base


def kinds(registry: Registry) -> list[str]:
    return [event.kind for event in reversed(registry.events("census"))]


def test_every_change_is_an_event_with_actor_and_time(registry: Registry, saved_model: Path) -> None:
    started = datetime.now(UTC)
    registry.create_model("census", actor="ada")
    registry.create_model("census", exist_ok=True, actor="bob")
    registry.publish("census", saved_model, actor="ada")
    registry.publish("census", saved_model, job="17")
    registry.describe_version("census", 1, tags={"owner": "ada"}, description="first", actor="bob")
    registry.describe_version("census", 1, tags={"owner": "ada"}, description="first", actor="eve")
    registry.promote("census", 1, actor="ada")
    registry.promote("census", 2, actor="bob", reason="better")
    registry.rollback("census", actor="ada")
    registry.undo_promotion(registry.history("census")[0], "will not load")
    registry.remove_label("census", "production", actor="ada")
    registry.delete_version("census", 2, actor="bob")
    registry.delete_version("census", 2, actor="eve")
    told = [(event.kind, event.actor, event.version) for event in reversed(registry.events("census"))]
    assert told == [
        ("model.created", "ada", None),
        ("version.created", "ada", 1),
        ("version.ready", "ada", 1),
        ("version.created", "job 17", 2),
        ("version.ready", "job 17", 2),
        ("version.tagged", "bob", 1),
        ("version.described", "bob", 1),
        ("label.moved", "ada", 1),
        ("label.moved", "bob", 2),
        ("label.rolled_back", "ada", 1),
        ("label.undone", "reconciler", 2),
        ("label.removed", "ada", None),
        ("version.deleted", "bob", 2),
    ]
    times = [event.at for event in reversed(registry.events("census"))]
    assert times == sorted(times)
    assert started <= times[0]
    assert times[0].utcoffset().total_seconds() == 0


def test_events_of_labels_replay_to_the_labels(census: Registry) -> None:
    for version, label in ((1, "production"), (2, "production"), (3, "canary"), (4, "production")):
        census.promote("census", version, label=label, actor="ada")
    census.rollback("census", actor="ada")
    census.remove_label("census", "canary", actor="ada")
    labels: dict[str, int | None] = {}
    for event in reversed(census.events("census")):
        if event.kind.startswith("label."):
            assert labels.get(event.label) == event.from_version
            labels[event.label] = event.to_version
    assert {label: version for label, version in labels.items() if version} == census.labels("census")


def test_refused_and_forced_promotions_are_told_with_the_report(census: Registry) -> None:
    census.promote("census", 1, actor="ada")
    census.set_gate("census", "production", ["auc >= 0.9"], actor="ada")
    with pytest.raises(GateRefused) as refused:
        census.promote("census", 2, actor="bob", reason="please")
    census.promote("census", 3, actor="bob", reason="the old one is down", force=True)
    moved, overridden, refusal, gate_set = census.events("census", limit=4)
    assert (gate_set.kind, gate_set.details) == ("gate.set", {"rules": ["auc >= 0.9"], "revision": 1})
    assert (refusal.kind, refusal.actor, refusal.reason) == ("gate.refused", "bob", "please")
    assert (refusal.from_version, refusal.to_version, refusal.forced) == (1, 2, False)
    assert refusal.gate_report == refused.value.report
    assert (overridden.kind, overridden.forced, overridden.version) == ("gate.overridden", True, 3)
    assert not overridden.gate_report.passed
    assert (moved.kind, moved.forced, moved.reason) == ("label.moved", True, "the old one is down")


def test_a_failed_publication_is_told_with_the_reason(
    registry: Registry, saved_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(ArtifactStore, "install", refuse)
    registry.create_model("census")
    with pytest.raises(PublishFailed):
        registry.publish("census", saved_model, actor="ada")
    failed = registry.events("census")[0]
    assert (failed.kind, failed.actor, failed.version) == ("version.failed", "ada", 1)
    assert "the disk is broken" in failed.reason


def test_changes_of_tags_and_description_keep_what_was_there(census: Registry) -> None:
    census.describe_version("census", 1, tags={"stage": "test"}, description="one", actor="ada")
    census.describe_version("census", 1, tags={"stage": "prod"}, actor="ada")
    tagged, described, _ = census.events("census", limit=3)
    assert tagged.details == {"before": {"stage": "test"}, "after": {"stage": "prod"}}
    assert described.details == {"before": "", "after": "one"}


def test_events_are_filtered_and_paged(census: Registry) -> None:
    census.promote("census", 2, actor="ada")
    census.promote("census", 2, label="canary", actor="ada")
    of_two = census.events("census", version=2)
    assert [event.kind for event in of_two] == [
        *("label.moved", "label.moved", "version.ready", "version.created")
    ]
    assert [event.label for event in census.events("census", label="canary")] == ["canary"]
    ready = census.events("census", kinds=["version.ready"])
    assert [event.version for event in ready] == [5, 4, 3, 2, 1]
    moved_or_ready = census.events("census", kinds=["label.*", "version.ready"], limit=3)
    assert [event.kind for event in moved_or_ready] == ["label.moved", "label.moved", "version.ready"]
    assert [event.version for event in census.events("census", kinds=["version.*"], version=2)] == [2, 2]
    with pytest.raises(InvalidInput, match=r"kind 'label.moves'; the kinds of events are model.created, "):
        census.events("census", kinds=["label.moves"])
    everything = census.events("census")
    pages, before = [], None
    while page := census.events("census", before=before, limit=4):
        pages += page
        before = page[-1].id
    assert pages == everything
    with pytest.raises(ModelNotFound):
        census.events("cencus")


def test_the_past_of_an_older_database_is_told_as_events(
    database_url: str, saved_model: Path, tmp_path: Path
) -> None:
    """The tables of the first release, with rows; then everything since is added, and the past is kept."""
    engine = database.connect(database_url)
    config = database._alembic_config(MIGRATIONS)

    def first_release(session: database.Session) -> None:
        config.attributes.update(
            connection=session.connection(), version_table=VERSION_TABLE, metadata=Base.metadata
        )
        command.upgrade(config, "0001")
        for statement in OLD_ROWS:
            session.execute(text(statement))

    database.write(engine, first_release)
    migrate_registry(engine)
    engine.dispose()
    with Registry(database_url, tmp_path / "models") as registry:
        assert kinds(registry) == [
            *("model.created", "version.created", "version.ready", "gate.set", "label.moved"),
            *("version.created", "version.failed"),
        ]
        gate_set, moved = registry.events("census", label="production")[::-1]
        assert gate_set.details == {"rules": ["auc >= 0.5"], "revision": 1}
        assert (moved.actor, moved.to_version, moved.reason) == ("ada", 1, "first")
        assert moved.gate_report == registry.history("census")[0].gate_report
        assert registry.events("census")[0].reason == "no space"
        assert registry.publish("census", saved_model).version == 3


OLD_ROWS = [
    "INSERT INTO registry_models VALUES ('census', '', 3, '2026-01-01 10:00:00')",
    *(
        "INSERT INTO registry_versions (model, version, state, size_bytes, manifest, signatures, metrics, "
        "params, step, job, source_revision, libraries, tags, description, created_at, touched_at, ready_at, "
        f"deleted_by, error) VALUES ('census', {number}, '{state}', 0, '{{}}', '{{}}', '{{}}', '{{}}', 1, "
        f"'17', '', '{{}}', '{{}}', '', '2026-01-0{day} 10:00:00', '2026-01-0{day} 10:00:01', {ready_at}, "
        f"'', '{error}')"
        for number, state, day, ready_at, error in (
            (1, "ready", 2, "'2026-01-02 10:00:02'", ""),
            (2, "failed", 5, "NULL", "no space"),
        )
    ),
    "INSERT INTO registry_gates VALUES "
    "('census', 'production', 1, '[\"auc >= 0.5\"]', 'ada', '2026-01-03 10:00:00')",
    "INSERT INTO registry_promotions (model, label, action, to_version, actor, reason, at, forced, "
    "gate_report) VALUES ('census', 'production', 'promote', 1, 'ada', 'first', '2026-01-04 10:00:00', "
    'false, \'{"model": "census", "version": 1, "label": "production", "gate_revision": 1, "checks": '
    '[{"rule": "auc >= 0.5", "passed": true, "measured": 0.7, "wanted": "", "detail": ""}]}\')',
]


def test_events_gates_and_approvals_are_append_only_in_the_database(
    census: Registry, database_url: str
) -> None:
    census.set_gate("census", "production", ["auc >= 0.5"], actor="ada")
    census.approve("census", 1, "production", actor="ada")
    engine = database.connect(database_url)
    for table, message in (
        ("registry_events", "the history is append-only"),
        ("registry_gates", "a gate is changed by a new revision"),
        ("registry_approvals", "an approval stays"),
    ):
        for statement in (f"UPDATE {table} SET actor = 'eve'", f"DELETE FROM {table}"):
            with pytest.raises(IntegrityError, match=message), engine.begin() as connection:
                connection.execute(text(statement))
    engine.dispose()
