"""Models, versions, labels, the history of promotions, gates, and what gateways report."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NAME = sa.String(128)
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)

FIXED = (
    *("model", "version", "size_bytes", "manifest", "signatures", "metrics", "params", "step", "job"),
    *("source_revision", "libraries", "created_at", "ready_at", "error"),
)
"""Columns of a version that stay as they are once it is no longer pending."""
DISALLOWED_STATE = """
    NEW.state <> OLD.state
    AND NOT (OLD.state = 'pending' AND NEW.state IN ('ready', 'failed'))
    AND NOT (OLD.state IN ('ready', 'failed') AND NEW.state = 'deleted')
"""


def upgrade() -> None:
    """Create the tables and triggers."""
    _create_models_and_versions()
    _create_history_and_labels()
    _create_gates_and_serving()
    op.execute("INSERT INTO registry_revision (id, value) VALUES (1, 0)")
    if op.get_bind().dialect.name == "sqlite":
        _create_sqlite_triggers()
    else:
        _create_postgresql_triggers()


def _create_models_and_versions() -> None:
    op.create_table(
        "registry_models",
        sa.Column("name", NAME, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("next_version", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_registry_models"),
        sa.CheckConstraint("next_version >= 1", name=op.f("ck_registry_models_next_version")),
    )
    table = "registry_versions"
    op.create_table(
        table,
        sa.Column("model", NAME, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        *(sa.Column(name, JSON, nullable=False) for name in ("manifest", "signatures", "metrics", "params")),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("source_revision", sa.Text(), nullable=False),
        sa.Column("libraries", JSON, nullable=False),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("touched_at", MOMENT, nullable=False),
        sa.Column("ready_at", MOMENT, nullable=True),
        sa.Column("deleted_at", MOMENT, nullable=True),
        sa.Column("deleted_by", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("model", "version", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model"], ["registry_models.name"], name=f"fk_{table}_model"),
        sa.CheckConstraint("version >= 1", name=op.f(f"ck_{table}_version")),
        sa.CheckConstraint(
            "state IN ('pending', 'ready', 'failed', 'deleted')", name=op.f(f"ck_{table}_state")
        ),
        sa.CheckConstraint("state <> 'ready' OR ready_at IS NOT NULL", name=op.f(f"ck_{table}_ready_at")),
        sa.CheckConstraint("state <> 'failed' OR error <> ''", name=op.f(f"ck_{table}_error")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f(f"ck_{table}_size_bytes")),
    )
    op.create_index(f"ix_{table}_state_model", table, ["state", "model"])


def _create_history_and_labels() -> None:
    versions = ["registry_versions.model", "registry_versions.version"]
    table = "registry_promotions"
    op.create_table(
        table,
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("model", NAME, nullable=False),
        sa.Column("label", NAME, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("from_version", sa.Integer(), nullable=True),
        sa.Column("to_version", sa.Integer(), nullable=True),
        sa.Column("replaces_id", BIG_ID, nullable=True),
        sa.Column("below_id", BIG_ID, nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("gate_report", JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model"], ["registry_models.name"], name=f"fk_{table}_model"),
        sa.ForeignKeyConstraint(["model", "from_version"], versions, name=f"fk_{table}_model_from_version"),
        sa.ForeignKeyConstraint(["model", "to_version"], versions, name=f"fk_{table}_model_to_version"),
        sa.ForeignKeyConstraint(["replaces_id"], [f"{table}.id"], name=f"fk_{table}_replaces_id"),
        sa.ForeignKeyConstraint(["below_id"], [f"{table}.id"], name=f"fk_{table}_below_id"),
        sa.UniqueConstraint("replaces_id", name=f"uq_{table}_replaces_id"),
        sa.CheckConstraint(
            "action IN ('promote', 'rollback', 'undo', 'remove')", name=op.f(f"ck_{table}_action")
        ),
        sa.CheckConstraint(
            "action NOT IN ('promote', 'rollback') OR to_version IS NOT NULL",
            name=op.f(f"ck_{table}_to_version"),
        ),
        sa.CheckConstraint("action <> 'remove' OR to_version IS NULL", name=op.f(f"ck_{table}_remove")),
        sa.CheckConstraint("actor <> ''", name=op.f(f"ck_{table}_actor")),
        sa.CheckConstraint("forced = false OR reason <> ''", name=op.f(f"ck_{table}_forced")),
        sqlite_autoincrement=True,
    )
    op.create_index(f"ix_{table}_model_label_id", table, ["model", "label", "id"])
    op.create_index(f"ix_{table}_model_label_to_version_id", table, ["model", "label", "to_version", "id"])
    table = "registry_labels"
    op.create_table(
        table,
        sa.Column("model", NAME, nullable=False),
        sa.Column("label", NAME, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("promotion_id", BIG_ID, nullable=False),
        sa.PrimaryKeyConstraint("model", "label", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model", "version"], versions, name=f"fk_{table}_model_version"),
        sa.ForeignKeyConstraint(
            ["promotion_id"], ["registry_promotions.id"], name=f"fk_{table}_promotion_id"
        ),
        sa.UniqueConstraint("promotion_id", name=f"uq_{table}_promotion_id"),
    )


def _create_gates_and_serving() -> None:
    table = "registry_gates"
    op.create_table(
        table,
        sa.Column("model", NAME, nullable=False),
        sa.Column("label", NAME, nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rules", JSON, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("model", "label", "revision", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model"], ["registry_models.name"], name=f"fk_{table}_model"),
        sa.CheckConstraint("revision >= 1", name=op.f(f"ck_{table}_revision")),
        sa.CheckConstraint("actor <> ''", name=op.f(f"ck_{table}_actor")),
    )
    op.create_table(
        "registry_revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registry_revision"),
        sa.CheckConstraint("id = 1", name=op.f("ck_registry_revision_one_row")),
    )
    op.create_table(
        "registry_serving_reports",
        sa.Column("gateway", sa.String(256), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("states", JSON, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("gateway", name="pk_registry_serving_reports"),
    )


def _create_sqlite_triggers() -> None:
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER registry_promotions_no_{verb.lower()} BEFORE {verb} ON registry_promotions "
            "BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END"
        )
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in FIXED)
    op.execute(
        "CREATE TRIGGER registry_versions_immutable BEFORE UPDATE ON registry_versions "
        f"WHEN ({DISALLOWED_STATE}) OR (OLD.state <> 'pending' AND ({changed})) "
        "BEGIN SELECT RAISE(ABORT, 'a version is immutable once published'); END"
    )
    op.execute(
        "CREATE TRIGGER registry_versions_no_delete BEFORE DELETE ON registry_versions "
        "BEGIN SELECT RAISE(ABORT, 'version numbers are never reused, so rows stay'); END"
    )


def _create_postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION registry_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    refuse = "FOR EACH STATEMENT EXECUTE FUNCTION registry_refuse"
    op.execute(
        "CREATE TRIGGER registry_promotions_append_only "
        "BEFORE UPDATE OR DELETE OR TRUNCATE ON registry_promotions "
        f"{refuse}('the history is append-only')"
    )
    op.execute(
        "CREATE TRIGGER registry_versions_no_delete BEFORE DELETE OR TRUNCATE ON registry_versions "
        f"{refuse}('version numbers are never reused, so rows stay')"
    )
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in FIXED)
    op.execute(
        "CREATE TRIGGER registry_versions_immutable BEFORE UPDATE ON registry_versions FOR EACH ROW "
        f"WHEN (({DISALLOWED_STATE}) OR (OLD.state <> 'pending' AND ({changed}))) "
        "EXECUTE FUNCTION registry_refuse('a version is immutable once published')"
    )
