"""The history of everything: one event for each change, written in the transaction that makes the change.

| kind | when | also in the event |
| --- | --- | --- |
| `model.created` | a model is made | |
| `model.tagged`, `model.described` | its tags or description are replaced | `details`: `before`, `after` |
| `version.created` | a number is given out, publishing begins | |
| `version.ready`, `version.failed` | publishing ends | `reason`: why it failed |
| `version.tagged`, `version.described` | tags or description are replaced | `details`: `before`, `after` |
| `version.approved` | somebody approves a version for a label | `reason`: the comment |
| `version.deleted` | a version is deleted, by hand or by its retention policy | `reason` |
| `gate.set` | a gate gets a new revision | `details`: `rules`, `revision` |
| `gate.refused` | a promotion is refused | `gate_report`, `from_version`, `to_version` |
| `gate.overridden` | a promotion is forced against its gate | the same, and `reason` |
| `label.moved` | a promotion | `from_version`, `to_version`, `gate_report`, `forced` |
| `label.rolled_back`, `label.undone`, `label.removed` | the other moves | `from_version`, `to_version` |
| `retention.set` | a retention policy gets a new revision | `details` |

Writers of one model hold its lock, so the ids of its events are in the order of the commits.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, select, union_all
from sqlalchemy.orm import Session

from registry import outbox
from registry.errors import InvalidInput
from registry.records import Event, GateReport
from registry.tables import EventRow
from registry.values import storable

KINDS = (
    *("model.created", "model.tagged", "model.described"),
    *("version.created", "version.ready", "version.failed", "version.tagged", "version.described"),
    *("version.approved", "version.deleted"),
    *("gate.set", "gate.refused", "gate.overridden"),
    *("label.moved", "label.rolled_back", "label.undone", "label.removed"),
    "retention.set",
)
"""All kinds, as in the table above."""
KIND_OF_MOVE = {
    "promote": "label.moved",
    "rollback": "label.rolled_back",
    "undo": "label.undone",
    "remove": "label.removed",
}
"""The kind of event for each action of a promotion."""


def record(
    session: Session,
    model: str,
    kind: str,
    *,
    actor: str,
    version: int | None = None,
    label: str | None = None,
    from_version: int | None = None,
    to_version: int | None = None,
    reason: str = "",
    forced: bool = False,
    gate_report: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
    promotion_id: int | None = None,
) -> EventRow:
    """Add an event to the history and to the outbox of webhooks, and return its row, with its id."""
    session.flush()  # What the event refers to must be there before it.
    row = EventRow(
        model=model,
        kind=kind,
        at=datetime.now(UTC),
        actor=storable(actor),
        version=version,
        label=label,
        from_version=from_version,
        to_version=to_version,
        reason=storable(reason),
        forced=forced,
        gate_report=None if gate_report is None else dict(gate_report),
        details=dict(details or {}),
        promotion_id=promotion_id,
    )
    session.add(row)
    session.flush()
    outbox.enqueue(session, row)
    return row


def find(
    session: Session,
    model: str,
    *,
    kinds: Sequence[str],
    version: int | None,
    label: str | None,
    before: int | None,
    limit: int | None,
) -> list[EventRow]:
    """Return events, newest first. `kinds` are from `kinds_like`. See `Registry.events`."""
    return list(
        session.scalars(
            events_query(model, kinds=kinds, version=version, label=label, before=before, limit=limit)
        )
    )


def events_query(
    model: str,
    *,
    kinds: Sequence[str],
    version: int | None,
    label: str | None,
    before: int | None,
    limit: int | None,
) -> Select[Any]:
    """Return the statement for `find`."""
    wanted: list[ColumnElement[bool]] = [EventRow.model == model]
    if version is not None:
        wanted.append(EventRow.version == version)
    if label is not None:
        wanted.append(EventRow.label == label)
    if before is not None:
        wanted.append(EventRow.id < before)
    newest = EventRow.id.desc()
    query = select(EventRow).order_by(newest).limit(limit)
    if not kinds:
        return query.where(*wanted)
    # A look into the index for each kind: an IN would be answered by walking through the whole history.
    each = [
        select(EventRow.id).where(*wanted, EventRow.kind == kind).order_by(newest).limit(limit).subquery()
        for kind in kinds
    ]
    return query.where(EventRow.id.in_(union_all(*(select(found.c.id) for found in each))))


def kinds_like(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds that the patterns, such as `version.ready` and `label.*`, stand for.

    Raises:
        InvalidInput: one stands for none.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        kinds = fnmatch.filter(KINDS, pattern)
        if not kinds:
            raise InvalidInput(
                f"Cannot look for events of kind {pattern!r}; the kinds of events are {', '.join(KINDS)}."
            )
        found |= dict.fromkeys(kinds)
    return tuple(found)


def to_event(row: EventRow) -> Event:
    """Return the record of a row."""
    return Event(
        id=row.id,
        model=row.model,
        kind=row.kind,
        at=row.at,
        actor=row.actor,
        version=row.version,
        label=row.label,
        from_version=row.from_version,
        to_version=row.to_version,
        reason=row.reason,
        forced=row.forced,
        gate_report=None if row.gate_report is None else GateReport.from_json(row.gate_report),
        details=row.details,
    )
