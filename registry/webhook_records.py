"""What the registry returns of webhooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Webhook:
    """A receiver of events."""

    id: int
    url: str
    model: str | None
    """The model it hears of; None: all."""
    kinds: tuple[str, ...]
    """Kinds of events, `label.*` for instance; empty: all."""
    description: str
    actor: str
    created_at: datetime
    secret: str = field(default="", repr=False)
    """The key of its signatures, told once, when it is added."""


@dataclass(frozen=True)
class Delivery:
    """One event on its way to one receiver."""

    id: int
    webhook: int
    event: int
    kind: str
    model: str
    state: str
    """`pending`, `delivered`, `given_up` (tried for three days) or `dropped` (the webhook was removed)."""
    attempts: int
    created_at: datetime
    next_at: datetime | None
    """When it is tried again; None when it is not."""
    done_at: datetime | None
    error: str
    """What went wrong at the last attempt."""
