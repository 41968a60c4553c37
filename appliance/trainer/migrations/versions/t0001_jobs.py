"""Jobs, their logs and events, and the workers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _create_jobs()
    _create_rows("trainer_job_logs", sa.Column("line", sa.Text(), nullable=False))
    _create_rows(
        "trainer_job_events",
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
    )
    op.create_table(
        "trainer_workers",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("job", sa.String(80)),
        sa.PrimaryKeyConstraint("name", name="pk_trainer_workers"),
    )


def _create_rows(table: str, *columns: sa.Column) -> None:
    """Create a table of numbered rows of a job."""
    op.create_table(
        table,
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        *columns,
        sa.ForeignKeyConstraint(
            ["job"], ["trainer_jobs.sequence"], name=f"fk_{table}_job", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "number", name=f"pk_{table}"),
    )


def _create_jobs() -> None:
    op.create_table(
        "trainer_jobs",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("function", sa.String(200), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("run_config", sa.JSON(), nullable=False),
        sa.Column("model", sa.String(200)),
        sa.Column("promote", sa.String(200)),
        sa.Column("source_revision", sa.String(200), nullable=False),
        sa.Column("submitted_by", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("worker", sa.String(200)),
        sa.Column("lease_expires_at", sa.Double()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("log_count", sa.Integer(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')",
            name="ck_trainer_jobs_state_is_known",
        ),
        sa.CheckConstraint(
            "(state = 'running') = (worker IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name="ck_trainer_jobs_running_is_leased",
        ),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled'))",
            name="ck_trainer_jobs_ended_is_finished",
        ),
        sa.CheckConstraint(
            "promote IS NULL OR model IS NOT NULL", name="ck_trainer_jobs_promote_needs_model"
        ),
        sa.PrimaryKeyConstraint("sequence", name="pk_trainer_jobs"),
        sa.UniqueConstraint("id", name="uq_trainer_jobs_id"),
    )
    op.create_index("ix_trainer_jobs_state_sequence", "trainer_jobs", ["state", "sequence"])
