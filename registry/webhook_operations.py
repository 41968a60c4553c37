"""The registry's operations on webhooks: who wants to hear of what, and what became of each delivery."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry import outbox, searching, versions
from registry.addresses import check_url
from registry.errors import DeliveryNotFound, InvalidInput, WebhookNotFound
from registry.events import kinds_like
from registry.operations import Operations
from registry.tables import EventRow
from registry.values import check_actor, check_text
from registry.webhook_records import Delivery, Webhook
from registry.webhook_tables import DeliveryRow, WebhookRow

SECRET_BYTES = 32
MIN_SECRET_CHARACTERS = 16
DELIVERY_STATES = ("pending", "delivered", "given_up", "dropped")


class WebhookOperations(Operations):
    """Webhooks and their deliveries."""

    def add_webhook(
        self,
        url: str,
        *,
        model: str | None = None,
        kinds: Sequence[str] = (),
        secret: str = "",
        description: str = "",
        actor: str,
    ) -> Webhook:
        """Tell a receiver of events from now on, and return it with its secret, which is never told again.

        Args:
            url: where to POST them, http or https.
            model: only events of this model; None: of all.
            kinds: only these kinds of events (`registry.events` lists them), `label.*` for instance; none
                given: all.
            secret: the key of the signatures, at least 16 characters; by default a random one.
            description: what it is for.
            actor: who adds it.

        Raises:
            ModelNotFound: there is no such model.
            InvalidInput: a URL that cannot be, a pattern that no kind matches, a short secret.
        """
        check_url(url)
        check_actor(actor)
        kinds_like(kinds)
        if secret and len(check_text(secret, "the secret")) < MIN_SECRET_CHARACTERS:
            raise InvalidInput(
                f"Cannot use a secret of {len(secret)} characters: give at least {MIN_SECRET_CHARACTERS}, "
                "or none for a random one."
            )
        check_text(description, "description")

        def work(session: Session) -> WebhookRow:
            if model is not None:
                versions.find_model(session, model)
            row = WebhookRow(
                model=model,
                url=url,
                kinds=list(kinds),
                secret=secret or secrets.token_urlsafe(SECRET_BYTES),
                description=description,
                actor=actor,
                created_at=outbox.now(),
                removed_at=None,
            )
            session.add(row)
            return row

        row = self._write(work)
        return replace(_to_webhook(row), secret=row.secret)

    def webhooks(self, model: str | None = None) -> list[Webhook]:
        """Return the webhooks, oldest first, without their secrets; with `model` those that hear of it."""
        query = select(WebhookRow).where(WebhookRow.removed_at.is_(None)).order_by(WebhookRow.id)
        if model is not None:
            query = query.where((WebhookRow.model == model) | WebhookRow.model.is_(None))
        return [_to_webhook(row) for row in self._read(lambda session: session.scalars(query).all())]

    def remove_webhook(self, webhook: int, actor: str) -> None:
        """Tell a receiver no more, not even of what it has not been told yet.

        Raises:
            WebhookNotFound: there is none.
        """
        check_actor(actor)

        def work(session: Session) -> None:
            row = _find_webhook(session, webhook)
            row.removed_at, row.secret = outbox.now(), ""
            outbox.drop_pending(session, webhook)

        self._write(work)

    def deliveries(
        self,
        webhook: int | None = None,
        *,
        state: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Delivery]:
        """Return deliveries, newest first: of one webhook, in one state, with ids below `before`.

        What has arrived is forgotten after seven days.

        Raises:
            WebhookNotFound: there is no such webhook.
            InvalidInput: a state or limit that cannot be.
        """
        searching.check_limit(limit)
        if state is not None and state not in DELIVERY_STATES:
            raise InvalidInput(f"Cannot look for {state!r}; the states are {', '.join(DELIVERY_STATES)}.")
        query = select(DeliveryRow, EventRow).join(EventRow, DeliveryRow.event_id == EventRow.id)
        if webhook is not None:
            query = query.where(DeliveryRow.webhook_id == webhook)
        if state is not None:
            query = query.where(DeliveryRow.state == state)
        if before is not None:
            query = query.where(DeliveryRow.id < before)

        def work(session: Session) -> list[Delivery]:
            if webhook is not None:
                _find_webhook(session, webhook)
            rows = session.execute(query.order_by(DeliveryRow.id.desc()).limit(limit)).all()
            return [_to_delivery(row, event) for row, event in rows]

        return self._read(work)

    def redeliver(self, delivery: int) -> Delivery:
        """Tell the receiver once more, as soon as possible, and for three days again if it does not answer.

        Raises:
            DeliveryNotFound: there is none, or it has been forgotten.
            WebhookNotFound: its webhook was removed.
        """

        def work(session: Session) -> Delivery:
            row = session.get(DeliveryRow, delivery)
            if row is None:
                raise DeliveryNotFound(delivery)
            _find_webhook(session, row.webhook_id)
            moment = outbox.now()
            row.state, row.next_at, row.done_at, row.error = "pending", moment, None, ""
            row.created_at = moment
            return _to_delivery(row, session.get_one(EventRow, row.event_id))

        return self._write(work)

    def claim_delivery(self, busy: Sequence[int] = ()) -> outbox.Letter | None:
        """Take what has been due for longest, of webhooks not `busy`, to send it; None: nothing is due."""
        # A glance without locks first, for mostly nothing is due.
        if self._read(lambda session: outbox.due(session, busy)) is None:
            return None
        return self._write(lambda session: outbox.claim(session, busy))

    def settle_delivery(self, letter: outbox.Letter, error: str = "") -> None:
        """Say how sending went: it arrived, or `error`; then it is tried again later."""
        self._write(lambda session: outbox.settle(session, letter, error))

    def release_delivery(self, letter: outbox.Letter) -> None:
        """Give back what was claimed, for the sender is to stop; it falls due at once."""
        self._write(lambda session: outbox.release(session, letter))

    def forget_deliveries(self) -> None:
        """Delete what has arrived more than seven days ago from the outbox."""
        self._write(outbox.forget_delivered)

    def seconds_until_due(self, longest: float, busy: Sequence[int] = ()) -> float:
        """Return how long nothing falls due of webhooks that are not `busy`, `longest` at most."""
        first = self._read(lambda session: outbox.next_due(session, busy))
        wait = timedelta(seconds=longest) if first is None else first - outbox.now()
        return min(max(wait.total_seconds(), 0.0), longest)


def _find_webhook(session: Session, webhook: int) -> WebhookRow:
    row = session.get(WebhookRow, webhook) if 0 < webhook < 2**63 else None
    if row is None or row.removed_at is not None:
        known = select(WebhookRow.id).where(WebhookRow.removed_at.is_(None)).order_by(WebhookRow.id)
        raise WebhookNotFound(webhook, tuple(session.scalars(known.limit(versions.SHOWN_IN_ERRORS))))
    return row


def _to_webhook(row: WebhookRow) -> Webhook:
    return Webhook(
        id=row.id,
        url=row.url,
        model=row.model,
        kinds=tuple(row.kinds),
        description=row.description,
        actor=row.actor,
        created_at=row.created_at,
    )


def _to_delivery(row: DeliveryRow, event: EventRow) -> Delivery:
    return Delivery(
        id=row.id,
        webhook=row.webhook_id,
        event=row.event_id,
        kind=event.kind,
        model=event.model,
        state=row.state,
        attempts=row.attempts,
        created_at=row.created_at,
        next_at=row.next_at if row.state == "pending" else None,
        done_at=row.done_at,
        error=row.error,
    )
