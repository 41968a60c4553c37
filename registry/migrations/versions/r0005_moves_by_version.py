"""Indexes by which the moves of one version are found in a long history."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLE = "registry_promotions"


def upgrade() -> None:
    """Create the indexes."""
    for column in ("to_version", "from_version"):
        op.create_index(f"ix_{TABLE}_model_{column}_id", TABLE, ["model", column, "id"])
