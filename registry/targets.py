"""What serving reads and says: the revision, the targets, the reports. Inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session, aliased

from registry.artifacts import ArtifactStore
from registry.records import ModelState, ServingReport, ServingTarget
from registry.tables import LabelRow, ModelRow, PromotionRow, RevisionRow, ServingReportRow, VersionRow


def count_up(session: Session) -> None:
    """Raise the revision: what `serving_targets` returns has changed."""
    raised = update(RevisionRow).values(value=RevisionRow.value + 1)
    session.execute(raised.execution_options(synchronize_session=False))


def revision(session: Session) -> int:
    """Return the revision."""
    return session.scalars(select(RevisionRow.value)).one()


def serving_targets(session: Session, store: ArtifactStore) -> list[ServingTarget]:
    """Return what should be loaded, for every model, by name."""
    below, back = aliased(PromotionRow), aliased(VersionRow)
    moves = (
        select(LabelRow, back.version)
        .join(PromotionRow, LabelRow.promotion_id == PromotionRow.id)
        .outerjoin(below, PromotionRow.below_id == below.id)
        .outerjoin(
            back, (back.model == below.model) & (back.version == below.to_version) & (back.state == "ready")
        )
        .order_by(LabelRow.model, LabelRow.label)
    )
    wanted: dict[str, list[tuple[LabelRow, int | None]]] = {}
    for row, rollback_version in session.execute(moves):
        wanted.setdefault(row.model, []).append((row, rollback_version))
    names = session.scalars(select(ModelRow.name).order_by(ModelRow.name))
    return [_target(store, name, wanted.get(name, [])) for name in names]


def _target(store: ArtifactStore, model: str, labels: list[tuple[LabelRow, int | None]]) -> ServingTarget:
    wanted = {row.version for row, _ in labels} | {back for _, back in labels if back is not None}
    return ServingTarget(
        model=model,
        base_path=store.base_path(model),
        versions=tuple(sorted(wanted)),
        labels={row.label: row.version for row, _ in labels},
        promotions={row.label: row.promotion_id for row, _ in labels},
    )


def states_to_json(states: Mapping[str, ModelState]) -> dict[str, Any]:
    """Return the states as stored: JSON's keys are strings."""
    return {
        model: {
            "routes": dict(state.routes),
            "versions": {str(version): name for version, name in state.versions.items()},
            "errors": {str(version): error for version, error in state.errors.items()},
        }
        for model, state in states.items()
    }


def to_serving_report(row: ServingReportRow) -> ServingReport:
    """Return the record of a row."""
    states = {
        model: ModelState(
            routes=state["routes"],
            versions={int(version): name for version, name in state["versions"].items()},
            errors={int(version): error for version, error in state["errors"].items()},
        )
        for model, state in row.states.items()
    }
    return ServingReport(row.gateway, row.revision, states, row.at)
