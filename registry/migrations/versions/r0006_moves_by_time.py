"""Indexes by which recent moves, and events of one kind or label, are found in a long history."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the indexes."""
    op.create_index("ix_registry_promotions_model_at", "registry_promotions", ["model", "at"])
    table = "registry_events"
    for columns in (["kind"], ["label"], ["label", "kind"]):
        op.create_index(f"ix_{table}_model_{'_'.join(columns)}_id", table, ["model", *columns, "id"])
