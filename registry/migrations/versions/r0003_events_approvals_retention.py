"""Every change as an event, the past too; approvals of versions; retention policies."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAME = sa.String(128)
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)
VERSION = ["registry_versions.model", "registry_versions.version"]

APPEND_ONLY = {
    "registry_events": "the history is append-only",
    "registry_gates": "a gate is changed by a new revision",
    "registry_approvals": "an approval stays",
    "registry_retention": "a retention policy is changed by a new revision",
}


def upgrade() -> None:
    """Create the tables and triggers, and tell the past."""
    _create_events()
    _create_approvals_and_retention()
    op.execute(_past(op.get_bind().dialect.name))
    for table, message in APPEND_ONLY.items():
        _refuse_changes(table, message)


def _create_events() -> None:
    table = "registry_events"
    op.create_table(
        table,
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("model", NAME, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("label", NAME, nullable=True),
        sa.Column("from_version", sa.Integer(), nullable=True),
        sa.Column("to_version", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("gate_report", JSON, nullable=True),
        sa.Column("details", JSON, nullable=False),
        sa.Column("promotion_id", BIG_ID, nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model"], ["registry_models.name"], name=f"fk_{table}_model"),
        sa.ForeignKeyConstraint(["model", "version"], VERSION, name=f"fk_{table}_model_version"),
        sa.ForeignKeyConstraint(
            ["promotion_id"], ["registry_promotions.id"], name=f"fk_{table}_promotion_id"
        ),
        sa.UniqueConstraint("promotion_id", name=f"uq_{table}_promotion_id"),
        sa.CheckConstraint("actor <> ''", name=op.f(f"ck_{table}_actor")),
        sa.CheckConstraint("forced = false OR reason <> ''", name=op.f(f"ck_{table}_forced")),
        sqlite_autoincrement=True,
    )
    op.create_index(f"ix_{table}_model_id", table, ["model", "id"])
    op.create_index(f"ix_{table}_model_version_id", table, ["model", "version", "id"])


def _create_approvals_and_retention() -> None:
    table = "registry_approvals"
    op.create_table(
        table,
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("model", NAME, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("label", NAME, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model", "version"], VERSION, name=f"fk_{table}_model_version"),
        sa.UniqueConstraint(
            "model", "version", "label", "actor", name=f"uq_{table}_model_version_label_actor"
        ),
        sa.CheckConstraint("actor <> ''", name=op.f(f"ck_{table}_actor")),
        sqlite_autoincrement=True,
    )
    table = "registry_retention"
    op.create_table(
        table,
        sa.Column("model", NAME, nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("keep_last", sa.Integer(), nullable=True),
        sa.Column("keep_production", sa.Boolean(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("model", "revision", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["model"], ["registry_models.name"], name=f"fk_{table}_model"),
        sa.CheckConstraint("revision >= 1", name=op.f(f"ck_{table}_revision")),
        sa.CheckConstraint("keep_last IS NULL OR keep_last >= 1", name=op.f(f"ck_{table}_keep_last")),
        sa.CheckConstraint("actor <> ''", name=op.f(f"ck_{table}_actor")),
    )


def _past(dialect: str) -> str:
    """Return the statement that tells, in order of time, what the tables know of the past."""
    if dialect == "postgresql":
        nothing, null = "CAST('{}' AS jsonb)", "CAST(NULL AS jsonb)"
        rules = "jsonb_build_object('rules', rules, 'revision', revision)"
    else:
        nothing, null = "'{}'", "NULL"
        rules = "json_object('rules', json(rules), 'revision', revision)"
    no_int, no_name, no_id = "CAST(NULL AS integer)", "CAST(NULL AS varchar)", "CAST(NULL AS bigint)"
    publisher = "CASE WHEN job = '' THEN 'unknown' ELSE 'job ' || job END"
    # All that an event of a version says after its version: no label, no move, no gate.
    of_version = f"{no_name}, {no_int}, {no_int}, '', false, {null}, {nothing}, {no_id}"
    failed = of_version.replace("''", "error", 1)
    return f"""
    INSERT INTO registry_events
        (model, kind, at, actor, version, label, from_version, to_version, reason, forced, gate_report,
         details, promotion_id)
    SELECT model, kind, at, actor, version, label, from_version, to_version, reason, forced, gate_report,
         details, promotion_id
    FROM (
        SELECT 0 AS place, name AS model, 'model.created' AS kind, created_at AS at, 'unknown' AS actor,
            {no_int} AS version, {no_name} AS label, {no_int} AS from_version, {no_int} AS to_version,
            '' AS reason, false AS forced, {null} AS gate_report, {nothing} AS details,
            {no_id} AS promotion_id
        FROM registry_models
        UNION ALL SELECT 1, model, 'version.created', created_at, {publisher}, version, {of_version}
        FROM registry_versions
        UNION ALL SELECT 2, model, 'version.ready', ready_at, {publisher}, version, {of_version}
        FROM registry_versions WHERE ready_at IS NOT NULL
        UNION ALL SELECT 2, model, 'version.failed', touched_at, {publisher}, version, {failed}
        FROM registry_versions WHERE error <> ''
        UNION ALL SELECT 4, model, 'version.deleted', deleted_at, deleted_by, version, {of_version}
        FROM registry_versions WHERE state = 'deleted'
        UNION ALL SELECT 3, model, 'gate.set', at, actor, {no_int}, label, {no_int}, {no_int}, '', false,
            {null}, {rules}, {no_id}
        FROM registry_gates
        UNION ALL SELECT 3, model,
            CASE action WHEN 'promote' THEN 'label.moved' WHEN 'rollback' THEN 'label.rolled_back'
                WHEN 'undo' THEN 'label.undone' ELSE 'label.removed' END,
            at, actor, to_version, label, from_version, to_version, reason, forced, gate_report, {nothing}, id
        FROM registry_promotions
    ) AS past
    ORDER BY at, place, promotion_id, version
    """


def _refuse_changes(table: str, message: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION registry_refuse('{message}')"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
