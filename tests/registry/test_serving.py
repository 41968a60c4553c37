"""What serving reads from the registry, and what it reports."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from registry import ModelState, Registry


def kept(registry: Registry) -> tuple[int, ...]:
    (target,) = registry.serving_targets()
    return target.versions


def test_targets_name_the_base_path_the_labels_and_the_moves(census: Registry, tmp_path: Path) -> None:
    census.promote("census", 1, actor="ada")
    production = census.promote("census", 3, actor="ada")
    canary = census.promote("census", 5, label="canary", actor="ada")
    (target,) = census.serving_targets()
    assert (target.model, target.base_path) == ("census", str(tmp_path / "models" / "census"))
    assert target.labels == {"canary": 5, "production": 3}
    assert target.promotions == {"canary": canary.id, "production": production.id}
    assert target.versions == (1, 3, 5)


def test_the_version_a_rollback_would_go_to_stays_loaded(census: Registry) -> None:
    assert kept(census) == ()
    for version, expected in ((1, (1,)), (2, (1, 2)), (4, (2, 4))):
        census.promote("census", version, actor="ada")
        assert kept(census) == expected
    census.rollback("census", actor="ada")
    assert kept(census) == (1, 2)
    census.rollback("census", actor="ada")
    assert kept(census) == (1,)


def test_deleted_versions_are_not_kept_loaded(census: Registry) -> None:
    census.promote("census", 1, actor="ada")
    census.promote("census", 2, actor="ada")
    census.delete_version("census", 1, actor="ada")
    assert kept(census) == (2,)


def test_models_without_labels_are_targets_without_versions(census: Registry) -> None:
    census.create_model("adult")
    assert [(target.model, target.versions) for target in census.serving_targets()] == [
        ("adult", ()),
        ("census", ()),
    ]


def test_revision_rises_when_targets_change_and_only_then(census: Registry, saved_model: Path) -> None:
    changes = [
        lambda: census.create_model("adult"),
        lambda: census.promote("census", 1, actor="ada"),
        lambda: census.promote("census", 2, actor="ada"),
        lambda: census.rollback("census", actor="ada"),
        lambda: census.delete_version("census", 5, actor="ada"),
        lambda: census.undo_promotion(census.history("census")[0], "will not load"),
        lambda: census.remove_label("census", "production", actor="ada"),
    ]
    for change in changes:
        before = census.revision()
        change()
        assert census.revision() > before
    before = census.revision()
    census.create_model("adult", exist_ok=True)
    census.publish("census", saved_model)
    census.set_gate("census", "production", ["auc >= 0.5"], actor="ada")
    census.describe_version("census", 1, description="first")
    census.report_serving("gateway-1", before, {})
    assert census.revision() == before


def test_reports_replace_each_other_and_carry_the_time(census: Registry) -> None:
    started = datetime.now(UTC)
    state = ModelState({"production": 1}, {1: "AVAILABLE", 2: "LOADING"}, {3: "no such op: Frobnicate"})
    census.report_serving("gateway-2", 1, {})
    census.report_serving("gateway-1", 1, {})
    census.report_serving("gateway-1", 2, {"census": state})
    first, second = census.serving_reports()
    assert (first.gateway, first.revision, first.states) == ("gateway-1", 2, {"census": state})
    assert (second.gateway, second.revision, second.states) == ("gateway-2", 1, {})
    assert started <= second.at <= first.at <= datetime.now(UTC)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_two_registries_on_one_database_see_each_other(
    census: Registry, database_url: str, tmp_path: Path
) -> None:
    with Registry(database_url, tmp_path / "models") as other:
        other.promote("census", 2, actor="bob")
        assert census.labels("census") == {"production": 2}
        assert census.revision() == other.revision()
