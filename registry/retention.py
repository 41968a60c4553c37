"""Which versions may go: retention policies, and what is spared whatever they say.

Every function but `expendable`, which decides, works inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from registry import events, versions
from registry.records import Retention
from registry.tables import LabelRow, PromotionRow, RetentionRow, VersionRow

PRODUCTION = "production"
ACTOR = "gc"
"""Who deletes what a policy lets go."""


def expendable(
    policy: Retention, ready: Sequence[int], *, ever_in_production: Collection[int], spared: Collection[int]
) -> list[int]:
    """Return those of the ready versions that the policy does not keep, ascending."""
    if policy.keep_last is None:
        return []
    kept = {*sorted(ready)[-policy.keep_last :], *spared}
    if policy.keep_production:
        kept |= set(ever_in_production)
    return sorted(set(ready) - kept)


def find_policy(session: Session, model: str) -> Retention:
    """Return the newest policy of the model, or one that keeps everything."""
    versions.find_model(session, model)
    rows = select(RetentionRow).where(RetentionRow.model == model)
    row = session.scalars(rows.order_by(RetentionRow.revision.desc()).limit(1)).first()
    if row is None:
        return Retention(model, None, True)
    return Retention(row.model, row.keep_last, row.keep_production, row.revision, row.actor, row.at)


def set_policy(
    session: Session, model: str, keep_last: int | None, keep_production: bool, actor: str
) -> Retention:
    """Add a revision of the model's policy."""
    versions.find_model(session, model, lock=True)
    revision = find_policy(session, model).revision + 1
    row = RetentionRow(
        model=model,
        revision=revision,
        keep_last=keep_last,
        keep_production=keep_production,
        actor=actor,
        at=versions.now(),
    )
    session.add(row)
    details = {"keep_last": keep_last, "keep_production": keep_production, "revision": revision}
    events.record(session, model, "retention.set", actor=actor, details=details)
    return Retention(model, keep_last, keep_production, revision, actor, row.at)


def spared(session: Session, model: str, recent_seconds: float) -> set[int]:
    """Return the versions whose files must stay: labelled now, labelled recently, next in a rollback."""
    labelled = select(LabelRow.version).where(LabelRow.model == model)
    moves = select(PromotionRow.from_version, PromotionRow.to_version).where(
        PromotionRow.model == model, PromotionRow.at > versions.now() - timedelta(seconds=recent_seconds)
    )
    below = aliased(PromotionRow)
    next_in_rollback = (
        select(VersionRow.version)
        .select_from(LabelRow)
        .join(PromotionRow, LabelRow.promotion_id == PromotionRow.id)
        .join(below, PromotionRow.below_id == below.id)
        .join(VersionRow, (VersionRow.model == below.model) & (VersionRow.version == below.to_version))
        .where(LabelRow.model == model, VersionRow.state == "ready")
    )
    recent = {version for move in session.execute(moves) for version in move}
    found = {*session.scalars(labelled), *session.scalars(next_in_rollback), *recent}
    return {version for version in found if version is not None}


def going(session: Session, model: str, recent_seconds: float) -> dict[int, str]:
    """Return the versions that the model's policy does not keep, ascending, and why."""
    policy = find_policy(session, model)
    if policy.keep_last is None:
        return {}
    ready = session.scalars(
        select(VersionRow.version).where(VersionRow.model == model, VersionRow.state == "ready")
    ).all()
    ever = select(PromotionRow.to_version).where(
        PromotionRow.model == model, PromotionRow.label == PRODUCTION, PromotionRow.to_version.is_not(None)
    )
    numbers = expendable(
        policy,
        ready,
        ever_in_production={version for version in session.scalars(ever.distinct()) if version is not None},
        spared=spared(session, model, recent_seconds),
    )
    rest = " and all that were ever in production" if policy.keep_production else ""
    reason = f"retention policy {policy.revision}: keep the last {policy.keep_last}{rest}"
    return dict.fromkeys(numbers, reason)


def apply_policy(session: Session, model: str, recent_seconds: float) -> dict[int, str]:
    """Delete the versions that `going` names, and return them. The caller holds the model's lock."""
    found = going(session, model, recent_seconds)
    for number, reason in found.items():
        versions.delete(session, model, number, ACTOR, reason)
    return found
