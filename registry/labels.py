"""Labels and their history. Every function works inside the caller's transaction, holding the model's lock.

The history of a label is a stack. `promote` puts a version on top, `rollback` takes the top off, `undo`
restores what was there before the move it undoes. As nothing is ever changed or deleted, each row *is* a
state of the stack: its version on top of the row named by `below_id`. Going back means adding a row that
looks like an earlier one.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import exists, select, union_all
from sqlalchemy.orm import Session

from registry import events, gatekeeping, versions
from registry.artifacts import ArtifactStore
from registry.errors import (
    InvalidInput,
    LabelMoved,
    LabelNotFound,
    PromotionNotFound,
    RollbackRefused,
    UndoRefused,
    VersionNotReady,
)
from registry.records import GateCheck, GateReport, Promotion
from registry.tables import LabelRow, PromotionRow, VersionRow
from registry.targets import count_up
from registry.values import LABEL_NAME, MODEL_NAME, storable


class Unset(enum.Enum):
    """Stands for an argument that was not given, where None has a meaning of its own."""

    UNSET = "unset"


UNSET = Unset.UNSET
Expect = int | None | Unset


def find_label(session: Session, model: str, label: str) -> LabelRow:
    """Return the label's row. Raises ModelNotFound or LabelNotFound."""
    row = _label_row(session, model, label)
    if row is None:
        versions.find_model(session, model)
        raise LabelNotFound(model, label, tuple(of_model(session, model)))
    return row


def _label_row(session: Session, model: str, label: str) -> LabelRow | None:
    # Names of nothing are not even looked for: some databases refuse such text.
    is_name = MODEL_NAME.fullmatch(model) and LABEL_NAME.fullmatch(label)
    return session.get(LabelRow, (model, label)) if is_name else None


def of_model(session: Session, model: str) -> dict[str, int]:
    """Return the version under each label, labels in alphabetical order."""
    rows = session.scalars(select(LabelRow).where(LabelRow.model == model).order_by(LabelRow.label))
    return {row.label: row.version for row in rows}


def latest_move(session: Session, model: str, label: str) -> PromotionRow | None:
    """Return the newest entry of the label's history, or None."""
    moves = select(PromotionRow).where(PromotionRow.model == model, PromotionRow.label == label)
    return session.scalars(moves.order_by(PromotionRow.id.desc()).limit(1)).first()


@dataclass(frozen=True)
class Position:
    """Where a label stands. Holding the rows keeps the session from reading them again."""

    row: LabelRow | None
    """None: it is nowhere."""
    top: PromotionRow | None
    """Its latest move; None: it never moved."""

    @property
    def version(self) -> int | None:
        """The version under the label."""
        return None if self.row is None else self.row.version


def promote(
    session: Session,
    store: ArtifactStore,
    model: str,
    number: int,
    *,
    label: str,
    expect: Expect,
    actor: str,
    reason: str,
    force: bool,
    predictions: Mapping[str, GateCheck],
) -> PromotionRow | GateReport:
    """Move the label to a ready version that its gate lets through. See `Registry.promote`.

    That the files are there has been checked: a ready version loses none by us, for first it is deleted.

    Returns:
        The move, or the gate's report when it refuses: that it did is written down too.

    Raises:
        PredictionsMissing: the gate asks for predictions that are not among those given.
    """
    position = _lock(session, model, label, expect)
    row = versions.find_ready(session, model, number)
    if position.top is not None and position.version == number:
        return position.top
    report = gatekeeping.check_gate(session, store, row, label, actor, predictions)
    if not report.passed:
        events.record(
            session,
            model,
            "gate.overridden" if force else "gate.refused",
            actor=actor,
            version=number,
            label=label,
            from_version=position.version,
            to_version=number,
            reason=reason,
            forced=force,
            gate_report=report.to_json(),
        )
        if not force:
            return report
    return _move(
        session,
        position,
        PromotionRow(
            model=model,
            label=label,
            action="promote",
            to_version=number,
            below_id=_below_a_promotion(session, position.top, number),
            actor=actor,
            reason=reason,
            forced=not report.passed,
            gate_report=report.to_json() if report.checks else None,
        ),
    )


class FilesUnchecked(Exception):
    """A rollback would go to a version whose files have not been looked at. Stays within the registry."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def rollback_target(session: Session, model: str, label: str, to: int | None) -> VersionRow | None:
    """Return the version that a rollback would go to now, in whatever state; None: there is none."""
    if not MODEL_NAME.fullmatch(model):
        return None
    earlier = _earlier(session, model, label, to, None if to else latest_move(session, model, label))
    if earlier is None or earlier.to_version is None:
        return None
    return versions.find_version(session, model, earlier.to_version)


def roll_back(
    session: Session,
    model: str,
    *,
    label: str,
    to: int | None,
    expect: Expect,
    actor: str,
    reason: str,
    problems: Mapping[int, str],
) -> PromotionRow:
    """Move the label back by history. See `Registry.rollback`.

    Args:
        session: of the transaction.
        model, label, to, expect, actor, reason: as for `Registry.rollback`.
        problems: by version, what is wrong with its files; empty: nothing, as far as the store says.

    Raises:
        FilesUnchecked: the version that it would go to is not among `problems`.
    """
    position = _lock(session, model, label, expect)
    current = position.version
    earlier = _earlier(session, model, label, to, position.top)
    if earlier is None or earlier.to_version is None:
        raise RollbackRefused(model, label, _why_nothing(session, model, label, to, current))
    if earlier.to_version == current:
        raise RollbackRefused(model, label, f"it is on version {current} already")
    if problem := _problem(session, model, earlier.to_version, problems):
        why = f"version {earlier.to_version} served before, but no longer can: {problem}"
        others = _others_that_served(session, model, label, without={current, earlier.to_version})
        raise RollbackRefused(model, label, f"{why}. {_advice(others)}")
    return _move(
        session,
        position,
        PromotionRow(
            model=model,
            label=label,
            action="rollback",
            to_version=earlier.to_version,
            below_id=earlier.below_id,
            actor=actor,
            reason=reason,
            forced=False,
            gate_report=None,
        ),
    )


def undo(session: Session, promotion: int, actor: str, reason: str) -> PromotionRow:
    """Restore what was before a move, if that move is the label's latest. See `Registry.undo_promotion`."""
    undone = session.get(PromotionRow, promotion)
    if undone is None:
        raise PromotionNotFound(promotion)
    position = _lock(session, undone.model, undone.label, UNSET)
    top = position.top
    assert top is not None, "a label with a move has a latest move"
    if top.action == "undo" and top.replaces_id == promotion:
        return top
    if top.id != promotion:
        raise UndoRefused(promotion, undone.model, undone.label, top.id)
    if top.action == "undo" and top.to_version is None:
        return top
    # What an undo restored and will not load either must not bring back what was undone: go further down.
    earlier_id = undone.below_id if undone.action == "undo" else undone.replaces_id
    earlier = _nearest_usable(session, earlier_id)
    return _move(
        session,
        position,
        PromotionRow(
            model=undone.model,
            label=undone.label,
            action="undo",
            to_version=None if earlier is None else earlier.to_version,
            below_id=None if earlier is None else earlier.below_id,
            actor=actor,
            reason=reason,
            forced=False,
            gate_report=None,
        ),
    )


def remove(session: Session, model: str, label: str, expect: Expect, actor: str, reason: str) -> PromotionRow:
    """Take the label away. See `Registry.remove_label`."""
    position = _lock(session, model, label, expect)
    row = find_label(session, model, label)
    return _move(
        session,
        position,
        PromotionRow(
            model=model,
            label=label,
            action="remove",
            to_version=None,
            below_id=row.promotion_id,
            actor=actor,
            reason=reason,
            forced=False,
            gate_report=None,
        ),
    )


def history(
    session: Session,
    model: str,
    label: str | None,
    version: int | None,
    before: int | None,
    after: int | None,
    limit: int | None,
) -> list[PromotionRow]:
    """Return the entries of the history, newest first."""
    versions.find_model(session, model)
    rows = select(PromotionRow).where(PromotionRow.model == model)
    if label is not None:
        rows = rows.where(PromotionRow.label == label)
    if version is not None:
        # Two looks into two indexes: an OR would be answered by walking through the whole history.
        ways = (PromotionRow.to_version, PromotionRow.from_version)
        found = (select(PromotionRow.id).where(PromotionRow.model == model, way == version) for way in ways)
        rows = rows.where(PromotionRow.id.in_(union_all(*found)))
    if before is not None:
        rows = rows.where(PromotionRow.id < before)
    if after is not None:
        rows = rows.where(PromotionRow.id > after)
    return list(session.scalars(rows.order_by(PromotionRow.id.desc()).limit(limit)))


def to_promotion(row: PromotionRow) -> Promotion:
    """Return the record of a row."""
    return Promotion(
        id=row.id,
        model=row.model,
        label=row.label,
        action=row.action,
        from_version=row.from_version,
        to_version=row.to_version,
        actor=row.actor,
        reason=row.reason,
        at=row.at,
        forced=row.forced,
        gate_report=None if row.gate_report is None else GateReport.from_json(row.gate_report),
    )


def check_reason(force: bool, reason: str) -> None:
    """Raise InvalidInput when a gate is to be overridden without saying why."""
    if force and not reason.strip():
        raise InvalidInput(
            "Cannot force a promotion without a reason. Pass reason='...'; the history keeps it."
        )


def _lock(session: Session, model: str, label: str, expect: Expect) -> Position:
    """Lock the model and return where the label stands. Raises LabelMoved when that is not as expected."""
    versions.find_model(session, model, lock=True)
    row = _label_row(session, model, label)
    current = None if row is None else row.version
    if expect is not UNSET and expect != current:
        raise LabelMoved(model, label, expect, current)
    return Position(row, latest_move(session, model, label) if LABEL_NAME.fullmatch(label) else None)


def _move(session: Session, position: Position, move: PromotionRow) -> PromotionRow:
    """Add the entry to the history and put the label, which stands at `position`, where it says."""
    top, row = position.top, position.row
    move.replaces_id = None if top is None else top.id
    move.from_version = None if top is None else top.to_version
    move.at, move.reason = versions.now(), storable(move.reason)
    session.add(move)
    session.flush()
    if move.to_version is None:
        if row is not None:
            session.delete(row)
    elif row is None:
        session.add(
            LabelRow(model=move.model, label=move.label, version=move.to_version, promotion_id=move.id)
        )
    else:
        row.version, row.promotion_id = move.to_version, move.id
    session.flush()
    events.record(
        session,
        move.model,
        events.KIND_OF_MOVE[move.action],
        actor=move.actor,
        version=move.to_version,
        label=move.label,
        from_version=move.from_version,
        to_version=move.to_version,
        reason=move.reason,
        forced=move.forced,
        gate_report=move.gate_report,
        promotion_id=move.id,
    )
    count_up(session)
    return move


def _below_a_promotion(session: Session, top: PromotionRow | None, number: int) -> int | None:
    """Return the entry that a promotion of the version is put on."""
    if top is not None and top.to_version is None:
        # The label was taken away. What lies below is what it last stood on, perhaps this very version.
        top = None if top.below_id is None else session.get_one(PromotionRow, top.below_id)
    if top is None:
        return None
    return top.below_id if top.to_version == number else top.id


def _earlier(
    session: Session, model: str, label: str, to: int | None, top: PromotionRow | None
) -> PromotionRow | None:
    """Return the entry that a rollback would make the label look like again."""
    if to is not None:
        return _latest_arrival(session, model, label, to)
    return None if top is None or top.below_id is None else session.get(PromotionRow, top.below_id)


def _problem(session: Session, model: str, number: int, problems: Mapping[int, str]) -> str:
    try:
        versions.find_ready(session, model, number)
    except VersionNotReady as error:
        return error.problem
    if number not in problems:
        raise FilesUnchecked(number)
    return problems[number]


def _latest_arrival(session: Session, model: str, label: str, number: int) -> PromotionRow | None:
    """Return the newest entry that brought the label to the version."""
    if not 0 < number < versions.MORE_THAN_ANY_NUMBER:
        return None
    moves = select(PromotionRow).where(
        PromotionRow.model == model, PromotionRow.label == label, PromotionRow.to_version == number
    )
    return session.scalars(moves.order_by(PromotionRow.id.desc()).limit(1)).first()


def _nearest_usable(session: Session, promotion: int | None) -> PromotionRow | None:
    """Return the entry, or the nearest below it, that leads to a ready version or took the label away."""
    while promotion is not None:
        row = session.get_one(PromotionRow, promotion)
        if (
            row.to_version is None
            or session.get_one(VersionRow, (row.model, row.to_version)).state == "ready"
        ):
            return row
        promotion = row.below_id
    return None


def _others_that_served(
    session: Session, model: str, label: str, *, without: Collection[int | None]
) -> list[int]:
    """Return the newest ready versions that were ever under the label."""
    was_there = exists().where(
        PromotionRow.model == VersionRow.model,
        PromotionRow.label == label,
        PromotionRow.to_version == VersionRow.version,
    )
    ready = select(VersionRow.version).where(
        VersionRow.model == model, VersionRow.state == "ready", was_there
    )
    newest = session.scalars(
        ready.order_by(VersionRow.version.desc()).limit(versions.SHOWN_IN_ERRORS + len(without))
    )
    return [number for number in newest if number not in without][: versions.SHOWN_IN_ERRORS]


def _advice(others: Sequence[int]) -> str:
    if not others:
        return "Nothing else that served before is still there: promote another version"
    numbers = ", ".join(map(str, others))
    return f"Go back to another that served before, by its number: {numbers}"


def _why_nothing(session: Session, model: str, label: str, to: int | None, current: int | None) -> str:
    if to is not None:
        versions.find_version(session, model, to)
        return f"version {to} never was {label}; promote it instead, so that the gate is asked"
    if current is None:
        known = ", ".join(of_model(session, model)) or "none"
        return f"no version ever was there (labels of the model: {known})"
    return f"no version was there before version {current}"
