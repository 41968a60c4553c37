"""The outbox: what is still to be told to webhooks. Every function works inside the caller's transaction.

A delivery is written in the transaction of the change it tells of, so there is none without a change and no
change without it. Whoever sends takes a lease first, by moving `next_at` on: a sender that dies leaves a
delivery that falls due again. So each event is told at least once, twice when a sender dies between the
receiver's answer and its own note of it; receivers tell a repetition by the delivery's id.
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, select, update
from sqlalchemy.orm import Session

from registry.tables import EventRow
from registry.values import storable
from registry.webhook_tables import DeliveryRow, WebhookRow

LEASE_SECONDS = 60.0
"""How long a sender may take. Far longer than an attempt may last, so only the dead lose a delivery."""
FIRST_PAUSE_SECONDS = 1.0
"""Before the second attempt; doubled each time, a random half of it taken off."""
LONGEST_PAUSE_SECONDS = 3600.0
GIVE_UP_AFTER = timedelta(days=3)
KEEP_DELIVERED = timedelta(days=7)
MAX_ERROR_CHARACTERS = 500


def now() -> datetime:
    """Return the moment, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Letter:
    """A delivery that this sender holds the lease of, and all that sending takes."""

    delivery: int
    webhook: int
    url: str
    secret: str
    attempts: int
    """Counting this one."""
    event: Mapping[str, Any]


def enqueue(session: Session, event: EventRow) -> None:
    """Put an event, which has its id, into the outbox of everyone who wants to hear of it."""
    hooks = select(WebhookRow).where(WebhookRow.removed_at.is_(None))
    for hook in session.scalars(hooks.where((WebhookRow.model == event.model) | WebhookRow.model.is_(None))):
        if wants(hook.kinds, event.kind):
            moment = now()
            session.add(
                DeliveryRow(
                    webhook_id=hook.id,
                    event_id=event.id,
                    state="pending",
                    attempts=0,
                    created_at=moment,
                    next_at=moment,
                    done_at=None,
                    error="",
                )
            )


def wants(kinds: Sequence[str], kind: str) -> bool:
    """Return whether one of the patterns matches the kind; no pattern: every kind."""
    return not kinds or any(fnmatch.fnmatchcase(kind, pattern) for pattern in kinds)


def due(session: Session, busy: Collection[int]) -> int | None:
    """Return the id of the delivery that has been due for longest, of webhooks that are not `busy`.

    One at a time to each receiver: a slow one keeps nobody else waiting.
    """
    query = _pending(busy).where(DeliveryRow.next_at <= now()).with_only_columns(DeliveryRow.id)
    return session.scalars(query).first()


def next_due(session: Session, busy: Collection[int]) -> datetime | None:
    """Return when the next delivery falls due, or fell due, of webhooks that are not `busy`."""
    return session.scalars(_pending(busy).with_only_columns(DeliveryRow.next_at)).first()


def _pending(busy: Collection[int]) -> Select[Any]:
    query = select(DeliveryRow).where(DeliveryRow.state == "pending")
    if busy:
        query = query.where(DeliveryRow.webhook_id.not_in(busy))
    return query.order_by(DeliveryRow.next_at, DeliveryRow.id).limit(1)


def claim(session: Session, busy: Collection[int]) -> Letter | None:
    """Take the lease of what `due` returns, or return None when nothing is due or others were faster."""
    moment = now()
    oldest = _pending(busy).where(DeliveryRow.next_at <= moment).with_for_update(skip_locked=True)
    row = session.scalars(oldest).first()
    if row is None:
        return None
    row.next_at, row.attempts = moment + timedelta(seconds=LEASE_SECONDS), row.attempts + 1
    hook, event = session.get_one(WebhookRow, row.webhook_id), session.get_one(EventRow, row.event_id)
    return Letter(row.id, hook.id, hook.url, hook.secret, row.attempts, event_json(event))


def settle(session: Session, letter: Letter, error: str) -> None:
    """Note how the attempt went: delivered when `error` is empty; else it is tried again, or given up."""
    row = session.get_one(DeliveryRow, letter.delivery)
    if row.state != "pending" or row.attempts != letter.attempts:
        # The lease had run out and somebody else has taken it up, or the webhook is gone.
        return
    moment = now()
    row.error = storable(error)[:MAX_ERROR_CHARACTERS]
    if not error:
        row.state, row.done_at = "delivered", moment
    elif moment - row.created_at >= GIVE_UP_AFTER:
        row.state, row.done_at = "given_up", moment
    else:
        row.next_at = moment + timedelta(seconds=pause_seconds(letter.attempts))


def release(session: Session, letter: Letter) -> None:
    """Give a lease back without an attempt's outcome: the sender is to stop."""
    held = (DeliveryRow.id == letter.delivery, DeliveryRow.attempts == letter.attempts)
    session.execute(update(DeliveryRow).where(*held, DeliveryRow.state == "pending").values(next_at=now()))


def pause_seconds(attempts: int) -> float:
    """Return how long to wait after that many attempts: ever longer, and not everyone equally long."""
    longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 32), LONGEST_PAUSE_SECONDS)
    return random.uniform(longest / 2, longest)


def drop_pending(session: Session, webhook: int) -> None:
    """Drop what a removed webhook has not been told."""
    pending = (DeliveryRow.webhook_id == webhook, DeliveryRow.state == "pending")
    session.execute(update(DeliveryRow).where(*pending).values(state="dropped", done_at=now()))


def forget_delivered(session: Session) -> None:
    """Delete deliveries that have long arrived; the events they told of stay."""
    before = now() - KEEP_DELIVERED
    old = (DeliveryRow.state.in_(("delivered", "dropped")), DeliveryRow.done_at < before)
    session.execute(delete(DeliveryRow).where(*old))


def event_json(event: EventRow) -> dict[str, Any]:
    """Return an event as receivers get it, but for the delivery's own id."""
    return {
        "event": event.id,
        "kind": event.kind,
        "at": event.at.isoformat(),
        "model": event.model,
        "version": event.version,
        "label": event.label,
        "from_version": event.from_version,
        "to_version": event.to_version,
        "actor": event.actor,
        "reason": event.reason,
        "forced": event.forced,
        "gate_report": event.gate_report,
        "details": event.details,
    }
