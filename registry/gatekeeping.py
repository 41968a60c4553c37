"""Gates and approvals: rows in, records out. Every function works inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry import events, gates, versions
from registry.artifacts import ArtifactStore
from registry.records import Approval, Gate, GateCheck, GateReport, Version
from registry.rules import Candidate
from registry.tables import ApprovalRow, GateRow, LabelRow, VersionRow
from registry.values import storable


def find_gate(session: Session, model: str, label: str, revision: int | None = None) -> Gate:
    """Return a gate of the label: that of the revision, or the newest, or one without rules."""
    versions.find_model(session, model)
    return _gate(session, model, label, revision)


def _gate(session: Session, model: str, label: str, revision: int | None = None) -> Gate:
    rows = select(GateRow).where(GateRow.model == model, GateRow.label == label)
    if revision is not None:
        rows = rows.where(GateRow.revision == revision)
    row = session.scalars(rows.order_by(GateRow.revision.desc()).limit(1)).first()
    return Gate(model, label, ()) if row is None else to_gate(row)


def gate_revisions(session: Session, model: str, label: str) -> list[Gate]:
    """Return all revisions of the label's gate, newest first."""
    versions.find_model(session, model)
    rows = select(GateRow).where(GateRow.model == model, GateRow.label == label)
    return [to_gate(row) for row in session.scalars(rows.order_by(GateRow.revision.desc()))]


def set_gate(session: Session, model: str, label: str, rules: tuple[str, ...], actor: str) -> Gate:
    """Add a revision of the label's gate."""
    versions.find_model(session, model, lock=True)
    revision = find_gate(session, model, label).revision + 1
    row = GateRow(
        model=model, label=label, revision=revision, rules=list(rules), actor=actor, at=versions.now()
    )
    session.add(row)
    details = {"rules": list(rules), "revision": revision}
    events.record(session, model, "gate.set", actor=actor, label=label, details=details)
    return to_gate(row)


def check_gate(
    session: Session,
    store: ArtifactStore,
    row: VersionRow,
    label: str,
    actor: str,
    predictions: Mapping[str, GateCheck],
) -> GateReport:
    """Hold the label's gate against a version.

    Raises:
        PredictionsMissing: the gate asks for predictions that are not among those given.
    """
    model = row.model

    def labelled(other: str) -> Version | None:
        there = session.get(LabelRow, (model, other))
        if there is None:
            return None
        return versions.to_version(versions.find_version(session, model, there.version), store)

    gate = _gate(session, model, label)
    candidate = Candidate(
        version=versions.to_version(row, store),
        labelled=labelled,
        # Most labels have no gate, and then nobody asks.
        approvals=find_approvals(session, model, row.version, label) if gate.rules else (),
        actor=actor,
        predictions=predictions,
    )
    return gates.evaluate(gate, candidate)


def approve(session: Session, model: str, number: int, label: str, actor: str, comment: str) -> Approval:
    """Add an approval. Approving again changes nothing. See `Registry.approve`."""
    versions.find_model(session, model, lock=True)
    versions.find_version(session, model, number)
    for approval in find_approvals(session, model, number, label):
        if approval.actor == actor:
            return approval
    row = ApprovalRow(
        model=model, version=number, label=label, actor=actor, comment=storable(comment), at=versions.now()
    )
    session.add(row)
    events.record(
        session, model, "version.approved", actor=actor, version=number, label=label, reason=comment
    )
    return to_approval(row)


def find_approvals(session: Session, model: str, number: int, label: str) -> list[Approval]:
    """Return the approvals of a version for a label, oldest first."""
    where = (ApprovalRow.model == model, ApprovalRow.version == number, ApprovalRow.label == label)
    rows = session.scalars(select(ApprovalRow).where(*where).order_by(ApprovalRow.id))
    return [to_approval(row) for row in rows]


def to_gate(row: GateRow) -> Gate:
    """Return the record of a row."""
    return Gate(row.model, row.label, tuple(row.rules), row.revision, row.actor, row.at)


def to_approval(row: ApprovalRow) -> Approval:
    """Return the record of a row."""
    return Approval(row.model, row.version, row.label, row.actor, row.comment, row.at)
