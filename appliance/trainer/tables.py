"""Tables of the job queue. They live in the registry's database, with an Alembic history of their own.

Times are seconds since 1970 by the *database's* clock (`now_seconds`), the same for workers on all hosts.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

VERSION_TABLE = "trainer_alembic_version"

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


class now_seconds(FunctionElement[float]):  # noqa: N801 - SQL functions are lower case, as in SQLAlchemy's `func`.
    """The database's clock, in seconds since 1970; advances within a transaction."""

    type = sa.Double()
    inherit_cache = True


@compiles(now_seconds, "postgresql")
def _now_postgresql(element: now_seconds, compiler: Any, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(now_seconds, "sqlite")
def _now_sqlite(element: now_seconds, compiler: Any, **options: Any) -> str:
    # 2440587.5 is the Julian day of 1970-01-01.
    return "((julianday('now') - 2440587.5) * 86400.0)"


jobs = sa.Table(
    "trainer_jobs",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True),  # the order of the queue
    sa.Column("id", sa.String(80), nullable=False, unique=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("file", sa.Text, nullable=False),  # the user's file, relative to the bundle
    sa.Column("function", sa.String(200), nullable=False),
    sa.Column("params", sa.JSON, nullable=False),
    sa.Column("run_config", sa.JSON, nullable=False),
    sa.Column("model", sa.String(200)),  # the model to register under
    sa.Column("promote", sa.String(200)),  # the label to move to the new version
    sa.Column("source_revision", sa.String(200), nullable=False),
    sa.Column("submitted_by", sa.String(200), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("finished_at", sa.Double),
    sa.Column("worker", sa.String(200)),
    sa.Column("lease_expires_at", sa.Double),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("crashes", sa.Integer, nullable=False),  # ends of a worker or a process without a word
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("result", sa.JSON, nullable=False),
    sa.Column("progress", sa.JSON, nullable=False),  # the last event of each kind
    sa.Column("log_count", sa.Integer, nullable=False),
    sa.Column("event_count", sa.Integer, nullable=False),
    sa.CheckConstraint(
        "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state_is_known"
    ),
    sa.CheckConstraint(
        "(state = 'running') = (worker IS NOT NULL AND lease_expires_at IS NOT NULL)",
        name="running_is_leased",
    ),
    sa.CheckConstraint(
        "(finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled'))",
        name="ended_is_finished",
    ),
    sa.CheckConstraint("promote IS NULL OR model IS NOT NULL", name="promote_needs_model"),
    sa.Index(None, "state", "sequence"),
)

job_logs = sa.Table(
    "trainer_job_logs",
    metadata,
    sa.Column("job", sa.ForeignKey("trainer_jobs.sequence", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),  # from 1, without gaps
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("line", sa.Text, nullable=False),
)

job_events = sa.Table(
    "trainer_job_events",
    metadata,
    sa.Column("job", sa.ForeignKey("trainer_jobs.sequence", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),  # from 1, without gaps
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("fields", sa.JSON, nullable=False),
)

workers = sa.Table(
    "trainer_workers",
    metadata,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("job", sa.String(80)),  # the id of the job it runs
)
