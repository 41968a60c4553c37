"""The tables of webhooks: who wants to hear of what, and the outbox of what is still to be told."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from registry.tables import Base, BigId, Name


class WebhookRow(Base):
    """A receiver of events. One that is removed stays as a row, for its deliveries name it."""

    __tablename__ = "registry_webhooks"
    __table_args__ = (
        CheckConstraint("url <> ''", name="url"),
        CheckConstraint("secret <> '' OR removed_at IS NOT NULL", name="secret"),
        CheckConstraint("actor <> ''", name="actor"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    model: Mapped[str | None] = mapped_column(Name, ForeignKey("registry_models.name"))
    """The model it hears of; NULL: all."""
    url: Mapped[str] = mapped_column(Text)
    kinds: Mapped[list[str]]
    """Kinds of events, `label.*` for instance; empty: all."""
    secret: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    actor: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]


class DeliveryRow(Base):
    """One event to be told to one receiver: the outbox, written in the transaction that makes the change."""

    __tablename__ = "registry_deliveries"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'given_up', 'dropped')", name="state"),
        CheckConstraint("attempts >= 0", name="attempts"),
        Index(None, "state", "next_at"),
        Index(None, "webhook_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    webhook_id: Mapped[int] = mapped_column(BigId, ForeignKey("registry_webhooks.id"))
    event_id: Mapped[int] = mapped_column(BigId, ForeignKey("registry_events.id"))
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime]
    next_at: Mapped[datetime]
    """When it is tried next. A sender moves this on before it tries, so that no other sends meanwhile."""
    done_at: Mapped[datetime | None]
    error: Mapped[str] = mapped_column(Text)
    """What went wrong at the last attempt; empty when nothing did."""
