"""The registry's tables. Constraints and triggers state in the schema what the code promises.

The names begin with `registry_`, so that other owners can keep their tables in the same database. The history
is a stack kept as a linked list: each row of `registry_promotions` says which row it replaced (`replaces_id`,
for undo) and which row lies below it (`below_id`, for rollback). Both are read by key, however long the
history is.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

BigId = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit key that SQLite counts up by itself."""
PlainJSON = JSON().with_variant(JSONB(), "postgresql")
"""JSON that the database can compare and search."""
Name = String(128)


class UTCDateTime(TypeDecorator[datetime]):
    """A moment in UTC: aware on the Python side on every database; SQLite itself keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` in UTC, without its zone for SQLite."""
        if value is None:
            return None
        in_utc = value.astimezone(UTC)
        return in_utc.replace(tzinfo=None) if dialect.name == "sqlite" else in_utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` as an aware datetime in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """What all tables of the registry share."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UTCDateTime, dict[str, Any]: PlainJSON, list[str]: PlainJSON}


class ModelRow(Base):
    """A model. Writers of one model lock its row, so they queue up on PostgreSQL as on SQLite."""

    __tablename__ = "registry_models"
    __table_args__ = (CheckConstraint("next_version >= 1", name="next_version"),)

    name: Mapped[str] = mapped_column(Name, primary_key=True)
    description: Mapped[str] = mapped_column(Text)
    tags: Mapped[dict[str, Any]] = mapped_column(PlainJSON, server_default="{}")
    next_version: Mapped[int]
    """The number the next version will get. It only rises, so numbers are never used twice."""
    created_at: Mapped[datetime]


class VersionRow(Base):
    """A version. Triggers keep it unchanged once it is ready, but for tags, description and deletion."""

    __tablename__ = "registry_versions"
    __table_args__ = (
        CheckConstraint("version >= 1", name="version"),
        CheckConstraint("state IN ('pending', 'ready', 'failed', 'deleted')", name="state"),
        CheckConstraint("state <> 'ready' OR ready_at IS NOT NULL", name="ready_at"),
        CheckConstraint("state <> 'failed' OR error <> ''", name="error"),
        CheckConstraint("size_bytes >= 0", name="size_bytes"),
        Index(None, "state", "model"),
        Index(None, "model", "created_at", "version"),
        Index(None, "model", "job", "version"),
        Index(None, "model", "state", "version"),
    )

    model: Mapped[str] = mapped_column(Name, ForeignKey("registry_models.name"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(String(16))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    manifest: Mapped[dict[str, Any]]
    signatures: Mapped[dict[str, Any]]
    metrics: Mapped[dict[str, Any]]
    params: Mapped[dict[str, Any]]
    step: Mapped[int | None] = mapped_column(BigInteger)
    job: Mapped[str] = mapped_column(Text)
    source_revision: Mapped[str] = mapped_column(Text)
    data_fingerprint: Mapped[str] = mapped_column(Text, server_default="")
    libraries: Mapped[dict[str, Any]]
    tags: Mapped[dict[str, Any]]
    description: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    touched_at: Mapped[datetime]
    """When the publisher last showed that it is alive; by it `sweep` knows the abandoned."""
    ready_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    deleted_by: Mapped[str] = mapped_column(Text)
    error: Mapped[str] = mapped_column(Text)


class PromotionRow(Base):
    """One move of a label: the history. Triggers refuse every UPDATE and DELETE."""

    __tablename__ = "registry_promotions"
    __table_args__ = (
        ForeignKeyConstraint(
            ["model", "from_version"], ["registry_versions.model", "registry_versions.version"]
        ),
        ForeignKeyConstraint(
            ["model", "to_version"], ["registry_versions.model", "registry_versions.version"]
        ),
        CheckConstraint("action IN ('promote', 'rollback', 'undo', 'remove')", name="action"),
        CheckConstraint("action NOT IN ('promote', 'rollback') OR to_version IS NOT NULL", name="to_version"),
        CheckConstraint("action <> 'remove' OR to_version IS NULL", name="remove"),
        CheckConstraint("actor <> ''", name="actor"),
        CheckConstraint("forced = false OR reason <> ''", name="forced"),
        # One row can be replaced once only: the moves of a label form a single line.
        UniqueConstraint("replaces_id"),
        Index(None, "model", "id"),
        Index(None, "model", "label", "id"),
        Index(None, "model", "label", "to_version", "id"),
        Index(None, "model", "to_version", "id"),
        Index(None, "model", "from_version", "id"),
        Index(None, "model", "at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    model: Mapped[str] = mapped_column(Name, ForeignKey("registry_models.name"))
    label: Mapped[str] = mapped_column(Name)
    action: Mapped[str] = mapped_column(String(16))
    from_version: Mapped[int | None]
    to_version: Mapped[int | None]
    replaces_id: Mapped[int | None] = mapped_column(BigId, ForeignKey("registry_promotions.id"))
    below_id: Mapped[int | None] = mapped_column(BigId, ForeignKey("registry_promotions.id"))
    actor: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]
    forced: Mapped[bool]
    gate_report: Mapped[dict[str, Any] | None] = mapped_column(PlainJSON)


class LabelRow(Base):
    """Where a label stands, and the move that brought it there."""

    __tablename__ = "registry_labels"
    __table_args__ = (
        ForeignKeyConstraint(["model", "version"], ["registry_versions.model", "registry_versions.version"]),
        UniqueConstraint("promotion_id"),
    )

    model: Mapped[str] = mapped_column(Name, primary_key=True)
    label: Mapped[str] = mapped_column(Name, primary_key=True)
    version: Mapped[int]
    promotion_id: Mapped[int] = mapped_column(BigId, ForeignKey("registry_promotions.id"))


class GateRow(Base):
    """The rules of a label. A new set is a new row, and none is changed; the highest revision counts."""

    __tablename__ = "registry_gates"
    __table_args__ = (
        CheckConstraint("revision >= 1", name="revision"),
        CheckConstraint("actor <> ''", name="actor"),
    )

    model: Mapped[str] = mapped_column(Name, ForeignKey("registry_models.name"), primary_key=True)
    label: Mapped[str] = mapped_column(Name, primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rules: Mapped[list[str]]
    actor: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]


class EventRow(Base):
    """One change of anything, in the order of the commits for each model. Triggers refuse every change."""

    __tablename__ = "registry_events"
    __table_args__ = (
        ForeignKeyConstraint(["model", "version"], ["registry_versions.model", "registry_versions.version"]),
        UniqueConstraint("promotion_id"),
        CheckConstraint("actor <> ''", name="actor"),
        CheckConstraint("forced = false OR reason <> ''", name="forced"),
        Index(None, "model", "id"),
        Index(None, "model", "version", "id"),
        Index(None, "model", "kind", "id"),
        Index(None, "model", "label", "id"),
        Index(None, "model", "label", "kind", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    model: Mapped[str] = mapped_column(Name, ForeignKey("registry_models.name"))
    kind: Mapped[str] = mapped_column(String(32))
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(Text)
    version: Mapped[int | None]
    label: Mapped[str | None] = mapped_column(Name)
    from_version: Mapped[int | None]
    to_version: Mapped[int | None]
    reason: Mapped[str] = mapped_column(Text)
    forced: Mapped[bool]
    gate_report: Mapped[dict[str, Any] | None] = mapped_column(PlainJSON)
    details: Mapped[dict[str, Any]]
    promotion_id: Mapped[int | None] = mapped_column(BigId, ForeignKey("registry_promotions.id"))


class ApprovalRow(Base):
    """Somebody's word that a version may go under a label."""

    __tablename__ = "registry_approvals"
    __table_args__ = (
        ForeignKeyConstraint(["model", "version"], ["registry_versions.model", "registry_versions.version"]),
        UniqueConstraint("model", "version", "label", "actor"),
        CheckConstraint("actor <> ''", name="actor"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    model: Mapped[str] = mapped_column(Name)
    version: Mapped[int]
    label: Mapped[str] = mapped_column(Name)
    actor: Mapped[str] = mapped_column(Text)
    comment: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]


class RetentionRow(Base):
    """Which versions of a model `gc` keeps. A new policy is a new row; the highest revision counts."""

    __tablename__ = "registry_retention"
    __table_args__ = (
        CheckConstraint("revision >= 1", name="revision"),
        CheckConstraint("keep_last IS NULL OR keep_last >= 1", name="keep_last"),
        CheckConstraint("actor <> ''", name="actor"),
    )

    model: Mapped[str] = mapped_column(Name, ForeignKey("registry_models.name"), primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    keep_last: Mapped[int | None]
    keep_production: Mapped[bool]
    actor: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]


class RevisionRow(Base):
    """One row, counted up in every transaction that changes what serving must see.

    A row and not a sequence: its lock makes the order of the values the order of the commits.
    """

    __tablename__ = "registry_revision"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)


class ServingReportRow(Base):
    """The newest report of each gateway."""

    __tablename__ = "registry_serving_reports"

    gateway: Mapped[str] = mapped_column(String(256), primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger)
    states: Mapped[dict[str, Any]]
    at: Mapped[datetime]
