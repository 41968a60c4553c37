"""Webhooks, and the outbox of what is still to be told to them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NAME = sa.String(128)
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables."""
    table = "registry_webhooks"
    op.create_table(
        table,
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("model", NAME, nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kinds", JSON, nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("removed_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model"], ["registry_models.name"], name=f"fk_{table}_model"),
        sa.CheckConstraint("url <> ''", name=op.f(f"ck_{table}_url")),
        sa.CheckConstraint("secret <> '' OR removed_at IS NOT NULL", name=op.f(f"ck_{table}_secret")),
        sa.CheckConstraint("actor <> ''", name=op.f(f"ck_{table}_actor")),
        sqlite_autoincrement=True,
    )
    table = "registry_deliveries"
    op.create_table(
        table,
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("webhook_id", BIG_ID, nullable=False),
        sa.Column("event_id", BIG_ID, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("next_at", MOMENT, nullable=False),
        sa.Column("done_at", MOMENT, nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["webhook_id"], ["registry_webhooks.id"], name=f"fk_{table}_webhook_id"),
        sa.ForeignKeyConstraint(["event_id"], ["registry_events.id"], name=f"fk_{table}_event_id"),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'given_up', 'dropped')", name=op.f(f"ck_{table}_state")
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f(f"ck_{table}_attempts")),
        sqlite_autoincrement=True,
    )
    op.create_index(f"ix_{table}_state_next_at", table, ["state", "next_at"])
    op.create_index(f"ix_{table}_webhook_id_id", table, ["webhook_id", "id"])
