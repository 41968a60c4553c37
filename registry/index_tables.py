"""Tables that search needs: each metric and tag of a version once more, as a row that an index can find.

The version's own columns stay the record; these rows are written in the same transactions and can be made
anew from them. A metric that is nan has no row, for nan meets no comparison.
"""

from __future__ import annotations

from sqlalchemy import Double, ForeignKeyConstraint, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from registry.tables import Base, Name


class MetricRow(Base):
    """One metric of one version."""

    __tablename__ = "registry_version_metrics"
    __table_args__ = (
        ForeignKeyConstraint(["model", "version"], ["registry_versions.model", "registry_versions.version"]),
        Index(None, "model", "name", "value", "version"),
    )

    model: Mapped[str] = mapped_column(Name, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[float] = mapped_column(Double)


class TagRow(Base):
    """One tag of one version."""

    __tablename__ = "registry_version_tags"
    __table_args__ = (
        ForeignKeyConstraint(["model", "version"], ["registry_versions.model", "registry_versions.version"]),
        Index(None, "model", "key", "version"),
    )

    model: Mapped[str] = mapped_column(Name, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[str] = mapped_column(Text)
