"""Rows and indexes for search, tags of models, and the fingerprint of the data a version was trained on."""

import json
import math
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NAME = sa.String(128)
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
VERSIONS = "registry_versions"
ROWS_AT_ONCE = 1000


def upgrade() -> None:
    """Add what is new, and fill it from the versions that are there."""
    op.add_column("registry_models", sa.Column("tags", JSON, nullable=False, server_default="{}"))
    op.add_column(VERSIONS, sa.Column("data_fingerprint", sa.Text(), nullable=False, server_default=""))
    op.create_index(f"ix_{VERSIONS}_model_created_at_version", VERSIONS, ["model", "created_at", "version"])
    op.create_index(f"ix_{VERSIONS}_model_job_version", VERSIONS, ["model", "job", "version"])
    op.create_index(f"ix_{VERSIONS}_model_state_version", VERSIONS, ["model", "state", "version"])
    op.create_index("ix_registry_promotions_model_id", "registry_promotions", ["model", "id"])
    _create_rows("registry_version_metrics", "name", sa.Double())
    _create_rows("registry_version_tags", "key", sa.Text())
    op.create_index(
        "ix_registry_version_metrics_model_name_value_version",
        "registry_version_metrics",
        ["model", "name", "value", "version"],
    )
    op.create_index(
        "ix_registry_version_tags_model_key_version", "registry_version_tags", ["model", "key", "version"]
    )
    _fill()
    _keep_fingerprints_unchanged()


def _create_rows(table: str, key: str, value: sa.types.TypeEngine) -> None:
    op.create_table(
        table,
        sa.Column("model", NAME, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(key, sa.Text(), nullable=False),
        sa.Column("value", value, nullable=False),
        sa.PrimaryKeyConstraint("model", "version", key, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(
            ["model", "version"],
            [f"{VERSIONS}.model", f"{VERSIONS}.version"],
            name=f"fk_{table}_model_version",
        ),
    )


def _fill() -> None:
    connection = op.get_bind()
    found = connection.execute(sa.text(f"SELECT model, version, metrics, tags FROM {VERSIONS}"))
    while rows := found.fetchmany(ROWS_AT_ONCE):
        metrics, tags = [], []
        for model, version, stored_metrics, stored_tags in rows:
            place = {"model": model, "version": version}
            for name, value in _read(stored_metrics).items():
                if not math.isnan(float(value)):
                    metrics.append({**place, "name": name, "value": float(value)})
            tags += [{**place, "key": key, "value": value} for key, value in _read(stored_tags).items()]
        _insert("registry_version_metrics", "name", metrics)
        _insert("registry_version_tags", "key", tags)


def _read(stored: Any) -> dict:
    return json.loads(stored) if isinstance(stored, str) else dict(stored)


def _insert(table: str, key: str, rows: list[dict]) -> None:
    if rows:
        statement = (
            f"INSERT INTO {table} (model, version, {key}, value) VALUES (:model, :version, :{key}, :value)"
        )
        op.get_bind().execute(sa.text(statement), rows)


def _keep_fingerprints_unchanged() -> None:
    name = "registry_versions_fingerprint_immutable"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {VERSIONS} "
            "WHEN OLD.state <> 'pending' AND NEW.data_fingerprint IS NOT OLD.data_fingerprint "
            "BEGIN SELECT RAISE(ABORT, 'a version is immutable once published'); END"
        )
    else:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {VERSIONS} FOR EACH ROW "
            "WHEN (OLD.state <> 'pending' AND NEW.data_fingerprint IS DISTINCT FROM OLD.data_fingerprint) "
            "EXECUTE FUNCTION registry_refuse('a version is immutable once published')"
        )
