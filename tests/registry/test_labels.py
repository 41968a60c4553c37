"""Promote, roll back, undo, remove: where labels stand, and what the history says."""

import pickle

import pytest

from registry import Registry
from registry.errors import (
    ArtifactMissing,
    InvalidInput,
    InvalidName,
    LabelMoved,
    LabelNotFound,
    ModelNotFound,
    PromotionNotFound,
    RollbackRefused,
    UndoRefused,
    VersionNotFound,
    VersionNotReady,
)


def promote_all(registry: Registry, *versions: int) -> None:
    for version in versions:
        registry.promote("census", version, actor="ada")


def moves(registry: Registry) -> list[tuple[str, int | None, int | None]]:
    return [(move.action, move.from_version, move.to_version) for move in registry.history("census")]


def test_promote_moves_the_label_and_records_who_when_and_why(census: Registry) -> None:
    before = census.promote("census", 1, actor="ada")
    move = census.promote("census", 3, actor="bob", reason="better")
    assert census.labels("census") == {"production": 3}
    assert census.resolve("census", "production").version == 3
    assert census.history("census") == [move, before]
    assert (move.action, move.from_version, move.to_version) == ("promote", 1, 3)
    assert (move.actor, move.reason, move.forced, move.gate_report) == ("bob", "better", False, None)
    assert move.at.utcoffset().total_seconds() == 0
    assert before.at <= move.at


def test_rollback_goes_to_what_served_before_and_again_further_back(census: Registry) -> None:
    promote_all(census, 1, 2, 4)
    assert [census.rollback("census", actor="ada").to_version for _ in range(2)] == [2, 1]
    with pytest.raises(RollbackRefused, match="no version was there before version 1"):
        census.rollback("census", actor="ada")
    assert census.labels("census") == {"production": 1}


def test_promotion_after_a_rollback_forgets_what_was_rolled_back(census: Registry) -> None:
    promote_all(census, 1, 2)
    census.rollback("census", actor="ada")
    promote_all(census, 3)
    assert census.rollback("census", actor="ada").to_version == 1


def test_rollback_to_a_version_goes_on_from_where_the_label_stood_then(census: Registry) -> None:
    promote_all(census, 1, 2, 3, 4)
    assert census.rollback("census", to=2, actor="ada").to_version == 2
    assert census.rollback("census", actor="ada").to_version == 1
    assert census.rollback("census", to=4, actor="ada").to_version == 4
    assert census.rollback("census", actor="ada").to_version == 3


def test_rollback_to_a_version_that_never_served_is_refused(census: Registry) -> None:
    promote_all(census, 1, 2)
    census.promote("census", 3, label="canary", actor="ada")
    with pytest.raises(RollbackRefused, match="version 3 never was production; promote it instead"):
        census.rollback("census", to=3, actor="ada")
    with pytest.raises(VersionNotFound, match="version 9"):
        census.rollback("census", to=9, actor="ada")
    with pytest.raises(RollbackRefused, match="on version 2 already"):
        census.rollback("census", to=2, actor="ada")


def test_rollback_of_a_label_that_never_was_is_refused(census: Registry) -> None:
    with pytest.raises(RollbackRefused, match="no version ever was there"):
        census.rollback("census", label="canary", actor="ada")
    with pytest.raises(ModelNotFound, match="'cencus'; registered: census"):
        census.rollback("cencus", actor="ada")


def test_rollback_to_a_deleted_version_is_refused_with_the_reason(census: Registry) -> None:
    promote_all(census, 1, 2, 3)
    census.delete_version("census", 2, actor="ada")
    with pytest.raises(RollbackRefused, match=r"version 2 served before, but.*it is deleted"):
        census.rollback("census", actor="ada")
    assert census.labels("census") == {"production": 3}
    assert census.rollback("census", to=1, actor="ada").to_version == 1


def test_versions_whose_files_are_gone_are_refused(census: Registry, tmp_path) -> None:
    promote_all(census, 1, 2)
    for version in (1, 3):
        (tmp_path / "models" / "census" / str(version) / "saved_model.pb").unlink()
    with pytest.raises(RollbackRefused, match=r"version 1 served before, but.*no SavedModel at"):
        census.rollback("census", actor="ada")
    with pytest.raises(ArtifactMissing, match=r"no SavedModel at .*models/census/3"):
        census.promote("census", 3, actor="ada")


def test_rollback_asks_no_gate_and_touches_no_file(census: Registry, tmp_path) -> None:
    """Nothing is copied or converted, however far back: only a row is added to the history."""
    promote_all(census, 1, 2, 3)
    census.set_gate("census", "production", ["auc >= 2", "approved by another", 'predict {"x": [1]}'], "ada")

    def files() -> dict[str, tuple[int, ...]]:
        found = {path: path.stat() for path in (tmp_path / "models").rglob("*")}
        return {
            str(path): (at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for path, at in found.items()
        }

    before = files()
    moves = [census.rollback("census", actor="ada") for _ in range(2)]
    moves.append(census.rollback("census", to=3, actor="ada"))
    assert [(move.action, move.to_version, move.gate_report) for move in moves] == [
        ("rollback", 2, None),
        ("rollback", 1, None),
        ("rollback", 3, None),
    ]
    assert files() == before


def test_promoting_where_the_label_stands_changes_nothing(census: Registry) -> None:
    promote_all(census, 1)
    first = census.promote("census", 2, actor="ada")
    revision = census.revision()
    assert census.promote("census", 2, actor="bob") == first
    assert len(census.history("census")) == 2
    assert census.revision() == revision
    assert census.rollback("census", actor="ada").to_version == 1


def test_expect_refuses_a_label_that_has_moved(census: Registry) -> None:
    census.promote("census", 1, expect=None, actor="ada")
    with pytest.raises(LabelMoved, match="expected it on no version, it is on version 1"):
        census.promote("census", 2, expect=None, actor="bob")
    census.promote("census", 2, expect=1, actor="bob")
    with pytest.raises(LabelMoved, match="expected it on version 1, it is on version 2"):
        census.promote("census", 3, expect=1, actor="ada")
    with pytest.raises(LabelMoved):
        census.rollback("census", expect=1, actor="ada")
    with pytest.raises(LabelMoved):
        census.remove_label("census", "production", expect=1, actor="ada")
    assert census.labels("census") == {"production": 2}


def test_labels_move_independently(census: Registry) -> None:
    promote_all(census, 1, 2)
    census.promote("census", 5, label="canary", actor="ada")
    census.promote("census", 4, label="canary", actor="ada")
    census.rollback("census", label="canary", actor="ada")
    assert census.labels("census") == {"canary": 5, "production": 2}
    assert [move.to_version for move in census.history("census", "canary")] == [5, 4, 5]
    assert [move.to_version for move in census.history("census", limit=2)] == [5, 4]


def test_undo_puts_the_label_back_and_says_who_and_why(census: Registry) -> None:
    promote_all(census, 1, 2)
    undone = census.undo_promotion(census.promote("census", 3, actor="ada"), "will not load")
    assert (undone.action, undone.from_version, undone.to_version) == ("undo", 3, 2)
    assert (undone.actor, undone.reason) == ("reconciler", "will not load")
    assert census.labels("census") == {"production": 2}
    assert census.rollback("census", actor="ada").to_version == 1


def test_undo_of_the_first_promotion_takes_the_label_away(census: Registry) -> None:
    first = census.promote("census", 1, actor="ada")
    assert census.undo_promotion(first.id, "will not load").to_version is None
    assert census.labels("census") == {}
    with pytest.raises(RollbackRefused, match="no version ever was there"):
        census.rollback("census", actor="ada")
    census.promote("census", 2, expect=None, actor="ada")
    with pytest.raises(RollbackRefused, match="before version 2"):
        census.rollback("census", actor="ada")


def test_undo_twice_is_the_same_as_once(census: Registry) -> None:
    promote_all(census, 1)
    move = census.promote("census", 2, actor="ada")
    assert census.undo_promotion(move, "first gateway") == census.undo_promotion(move, "second gateway")
    assert len(census.history("census")) == 3


def test_undo_is_refused_once_the_label_has_moved_on(census: Registry) -> None:
    promote_all(census, 1)
    stale = census.promote("census", 2, actor="ada")
    promote_all(census, 3, 2)
    with pytest.raises(UndoRefused, match=rf"Cannot undo promotion {stale.id}: .* has moved since"):
        census.undo_promotion(stale, "late news")
    assert census.labels("census") == {"production": 2}
    with pytest.raises(PromotionNotFound, match="promotion 12345"):
        census.undo_promotion(12345, "never was")


def test_undo_of_a_rollback_goes_forward_again(census: Registry) -> None:
    promote_all(census, 1, 2)
    move = census.rollback("census", actor="ada")
    assert census.undo_promotion(move, "version 1 will not load").to_version == 2
    assert census.rollback("census", actor="ada").to_version == 1


def test_undoing_undos_goes_down_and_ends(census: Registry) -> None:
    promote_all(census, 1, 2, 3)
    seen = []
    while census.labels("census"):
        seen.append(census.undo_promotion(census.history("census")[0], "nothing loads").to_version)
    assert seen == [2, 1, None]


def test_undo_passes_over_versions_deleted_meanwhile(census: Registry) -> None:
    promote_all(census, 1, 2, 3)
    census.delete_version("census", 2, actor="ada")
    assert census.undo_promotion(census.history("census")[0], "will not load").to_version == 1


def test_removed_label_is_gone_and_rollback_brings_it_back(census: Registry) -> None:
    promote_all(census, 1, 2)
    move = census.remove_label("census", "production", actor="ada", reason="withdrawn")
    assert (move.action, move.from_version, move.to_version) == ("remove", 2, None)
    with pytest.raises(LabelNotFound, match="label 'production' of model 'census'; labels: none"):
        census.resolve("census", "production")
    with pytest.raises(LabelNotFound):
        census.remove_label("census", "production", actor="ada")
    assert census.rollback("census", actor="ada").to_version == 2
    assert census.rollback("census", actor="ada").to_version == 1


def test_promotion_after_removal_can_be_rolled_back_past_it(census: Registry) -> None:
    promote_all(census, 1, 2)
    census.remove_label("census", "production", actor="ada")
    promote_all(census, 5)
    assert [census.rollback("census", actor="ada").to_version for _ in range(2)] == [2, 1]


def test_promoting_again_what_was_removed_is_as_if_it_had_stayed(census: Registry) -> None:
    promote_all(census, 1, 2)
    census.remove_label("census", "production", actor="ada")
    promote_all(census, 2)
    assert census.rollback("census", actor="ada").to_version == 1


def test_undo_of_a_promotion_after_removal_takes_the_label_away_again(census: Registry) -> None:
    promote_all(census, 1)
    census.remove_label("census", "production", actor="ada")
    promote_all(census, 2)
    assert census.undo_promotion(census.history("census")[0], "will not load").to_version is None
    assert census.labels("census") == {}
    assert census.rollback("census", actor="ada").to_version == 1


def test_bad_label_names_are_refused(census: Registry) -> None:
    for label in ("", "7", "-x", "a/b", "ü", "x" * 129, "production\n"):
        with pytest.raises(InvalidName, match="as a label name"):
            census.promote("census", 1, label=label, actor="ada")


def test_a_change_needs_an_actor(census: Registry) -> None:
    with pytest.raises(InvalidInput, match="without an actor"):
        census.promote("census", 1, actor=" ")


def test_unknown_and_unfinished_versions_are_refused(census: Registry) -> None:
    with pytest.raises(VersionNotFound, match=r"version 9 of model 'census'; newest registered: 5, 4, 3"):
        census.promote("census", 9, actor="ada")
    census.delete_version("census", 3, actor="ada")
    with pytest.raises(VersionNotReady, match="version 3 of model 'census': it is deleted"):
        census.promote("census", 3, actor="ada")
    with pytest.raises(VersionNotReady):
        census.resolve("census", 3)
    assert census.history("census") == []


def test_resolve_takes_numbers_as_int_or_text(census: Registry) -> None:
    assert census.resolve("census", 2) == census.resolve("census", "2") == census.version("census", 2)


def test_errors_survive_pickling(census: Registry) -> None:
    with pytest.raises(VersionNotFound) as caught:
        census.version("census", 9)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.known == (5, 4, 3, 2, 1)
