"""Search: filters, orders and pages of models and versions. Every function works inside a transaction.

A page is found by key (`the rows after this one`), not by counting rows off, so a late page costs what the
first one costs, and a version published meanwhile shifts nothing. Lists leave out manifests and signatures.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, literal, select, tuple_
from sqlalchemy.orm import Session

from registry.artifacts import ArtifactStore
from registry.conditions import COMPARISONS, Condition
from registry.errors import InvalidInput
from registry.index_tables import MetricRow, TagRow
from registry.listings import ModelSummary, Page, VersionSummary
from registry.tables import LabelRow, ModelRow, VersionRow
from registry.values import read_metrics

STATES = ("pending", "ready", "failed", "deleted")
DEFAULT_ORDER = "-version"
MAX_LIMIT = 1000
LISTED = (
    *(VersionRow.model, VersionRow.version, VersionRow.state, VersionRow.size_bytes, VersionRow.metrics),
    *(VersionRow.params, VersionRow.step, VersionRow.job, VersionRow.source_revision, VersionRow.tags),
    *(VersionRow.description, VersionRow.created_at, VersionRow.ready_at, VersionRow.error),
)
"""What a list reads of a version."""

T = TypeVar("T")


@dataclass(frozen=True)
class VersionFilter:
    """What a version must be to be listed; everything in it must hold."""

    states: tuple[str, ...] = ()
    """Any of these; empty: all but `deleted`."""
    metrics: tuple[Condition, ...] = ()
    tags: Mapping[str, str | None] = field(default_factory=dict)
    """Key to value; None: any value."""
    job: str | None = None
    label: str | None = None
    """The label the version is under now."""
    created_from: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True)
class Order:
    """By what a list is ordered: `version`, `created` or a metric; ties by version."""

    text: str
    key: str
    descending: bool

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read `version`, `created` or `metrics.<name>`, `-` before it for descending.

        Raises:
            InvalidInput: it is none of these.
        """
        key = text.removeprefix("-")
        if key not in ("version", "created") and not (key.startswith("metrics.") and len(key) > 8):
            raise InvalidInput(
                f"Cannot order by {text!r}. Order by version, created or metrics.NAME; "
                "with '-' before it the greatest comes first."
            )
        return cls(text, key, text.startswith("-"))

    @property
    def metric(self) -> str | None:
        """The metric's name, if it is one."""
        return self.key.removeprefix("metrics.") if self.key.startswith("metrics.") else None


def versions_query(
    model: str, wanted: VersionFilter, order: Order, limit: int, after: Sequence[Any] | None
) -> Select[Any]:
    """Return the statement for one page: the columns of `LISTED`, then the value ordered by."""
    keys, query = _ordered_by(model, order)
    query = query.where(VersionRow.model == model, *_conditions(model, wanted))
    if after is not None:
        here, there = tuple_(*keys), tuple_(*(literal(part) for part in after))
        query = query.where(here < there if order.descending else here > there)
    return query.order_by(*(key.desc() if order.descending else key for key in keys)).limit(limit)


def _ordered_by(model: str, order: Order) -> tuple[list[Any], Select[Any]]:
    """Return the columns ordered by, and a statement that has them."""
    if order.metric is not None:
        same = (MetricRow.model == VersionRow.model) & (MetricRow.version == VersionRow.version)
        query = select(*LISTED, MetricRow.value).join(MetricRow, same)
        # Model and version are taken from the metrics, so that their index gives the order.
        query = query.where(MetricRow.model == model, MetricRow.name == order.metric)
        return [MetricRow.value, MetricRow.version], query
    if order.key == "created":
        return [VersionRow.created_at, VersionRow.version], select(*LISTED)
    return [VersionRow.version], select(*LISTED)


def _conditions(model: str, wanted: VersionFilter) -> Iterable[ColumnElement[bool]]:
    if wanted.states:
        yield VersionRow.state.in_(wanted.states)
    else:
        yield VersionRow.state != "deleted"
    for condition in wanted.metrics:
        holds = COMPARISONS[condition.comparison](MetricRow.value, condition.bound)
        yield VersionRow.version.in_(
            select(MetricRow.version).where(
                MetricRow.model == model, MetricRow.name == condition.metric, holds
            )
        )
    for key, value in wanted.tags.items():
        tagged = select(TagRow.version).where(TagRow.model == model, TagRow.key == key)
        yield VersionRow.version.in_(tagged if value is None else tagged.where(TagRow.value == value))
    if wanted.job is not None:
        yield VersionRow.job == wanted.job
    if wanted.label is not None:
        yield VersionRow.version.in_(
            select(LabelRow.version).where(LabelRow.model == model, LabelRow.label == wanted.label)
        )
    if wanted.created_from is not None:
        yield VersionRow.created_at >= wanted.created_from
    if wanted.created_before is not None:
        yield VersionRow.created_at < wanted.created_before


def search_versions(
    session: Session,
    store: ArtifactStore,
    model: str,
    wanted: VersionFilter,
    order: Order,
    limit: int,
    cursor: str,
) -> Page[VersionSummary]:
    """Return one page of the versions that the filter lets through. See `Registry.search_versions`."""
    after = _read_version_cursor(cursor, order)
    rows = session.execute(versions_query(model, wanted, order, limit + 1, after)).all()
    labels = labels_by_version(session, model, [row.version for row in rows])
    found = [_summary(row, store, labels.get(row.version, ())) for row in rows[:limit]]
    return Page(tuple(found), _version_cursor(rows[limit - 1], order) if len(rows) > limit else "")


def labels_by_version(
    session: Session, model: str, numbers: Sequence[int] | None = None
) -> dict[int, tuple[str, ...]]:
    """Return the labels of each version that has any, in alphabetical order."""
    query = select(LabelRow.version, LabelRow.label).where(LabelRow.model == model).order_by(LabelRow.label)
    found: dict[int, tuple[str, ...]] = {}
    for version, label in session.execute(query):
        if numbers is None or version in numbers:
            found[version] = (*found.get(version, ()), label)
    return found


def _summary(row: Row[Any], store: ArtifactStore, labels: tuple[str, ...]) -> VersionSummary:
    values = {column.key: getattr(row, column.key) for column in LISTED}
    values["metrics"] = read_metrics(row.metrics)
    return VersionSummary(**values, uri=store.uri(row.model, row.version), labels=labels)


def _version_cursor(row: Row[Any], order: Order) -> str:
    if order.metric is not None:
        return _cursor([order.text, repr(row.value), row.version])
    if order.key == "created":
        return _cursor([order.text, row.created_at.isoformat(), row.version])
    return _cursor([order.text, row.version])


def _read_version_cursor(cursor: str, order: Order) -> list[Any] | None:
    if not cursor:
        return None
    text, *keys = _read_cursor(cursor)
    length = 1 if order.key == "version" else 2
    if text != order.text or len(keys) != length or not isinstance(keys[-1], int):
        raise InvalidInput(
            f"Cannot go on from the cursor {cursor!r}: it is not one of the order {order.text!r}."
        )
    try:
        if order.metric is not None:
            return [float(keys[0]), keys[1]]
        return [datetime.fromisoformat(keys[0]), keys[1]] if order.key == "created" else keys
    except (TypeError, ValueError) as error:
        raise _bad_cursor(cursor) from error


def search_models(
    session: Session, name: str, tags: Mapping[str, str | None], limit: int, cursor: str
) -> Page[ModelSummary]:
    """Return one page of the models, by name. See `Registry.search_models`."""
    query = select(ModelRow).order_by(ModelRow.name).limit(limit + 1)
    if name:
        query = query.where(_matches(session, name))
    for key, value in tags.items():
        stored = ModelRow.tags[key].as_string()
        query = query.where(stored.is_not(None) if value is None else stored == value)
    if cursor:
        (after,) = _read_cursor(cursor, length=1)
        query = query.where(ModelRow.name > str(after))
    rows = session.scalars(query).all()
    shown = rows[:limit]
    return Page(summarize(session, shown), _cursor([shown[-1].name]) if len(rows) > limit else "")


def summarize(session: Session, rows: Sequence[ModelRow]) -> tuple[ModelSummary, ...]:
    """Return the summaries of models, with their labels."""
    query = select(LabelRow).where(LabelRow.model.in_([row.name for row in rows]))
    labels: dict[str, dict[str, int]] = {}
    for label in session.scalars(query.order_by(LabelRow.model, LabelRow.label)):
        labels.setdefault(label.model, {})[label.label] = label.version
    return tuple(
        ModelSummary(
            name=row.name,
            description=row.description,
            tags=row.tags,
            created_at=row.created_at,
            labels=labels.get(row.name, {}),
            newest_version=row.next_version - 1,
        )
        for row in rows
    )


def _matches(session: Session, pattern: str) -> ColumnElement[bool]:
    """Return the condition that a name matches a pattern with `*` and `?`; case counts on every database."""
    if session.get_bind().dialect.name == "sqlite":
        # LIKE of SQLite takes a for A. No name has a bracket, so that GLOB's third wildcard is made literal.
        return ModelRow.name.op("GLOB")(pattern.replace("[", "[[]"))
    escaped = pattern.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return ModelRow.name.like(escaped.replace("*", "%").replace("?", "_"), escape="\\")


def index_rows(
    model: str, version: int, metrics: Mapping[str, Any], tags: Mapping[str, str]
) -> list[MetricRow | TagRow]:
    """Return the rows by which search finds a version with these metrics and tags, as stored."""
    numbers = {name: value for name, value in read_metrics(metrics).items() if not math.isnan(value)}
    return [
        *(MetricRow(model=model, version=version, name=name, value=value) for name, value in numbers.items()),
        *(TagRow(model=model, version=version, key=key, value=value) for key, value in tags.items()),
    ]


def check_limit(limit: int) -> int:
    """Return `limit`. Raises InvalidInput unless it is from 1 to `MAX_LIMIT`."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(
            f"Cannot list {limit} at once. Ask for 1 to {MAX_LIMIT}, and go on with the cursor."
        )
    return limit


def check_states(states: Sequence[str]) -> tuple[str, ...]:
    """Return the states. Raises InvalidInput for one that no version has."""
    for state in states:
        if state not in STATES:
            raise InvalidInput(f"Cannot look for the state {state!r}; the states are {', '.join(STATES)}.")
    return tuple(states)


def in_utc(moment: datetime | None) -> datetime | None:
    """Return the moment; one without a zone is taken as UTC."""
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _cursor(parts: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def _read_cursor(cursor: str, length: int | None = None) -> list[Any]:
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error) as error:
        raise _bad_cursor(cursor) from error
    if not isinstance(parts, list) or not parts or (length is not None and len(parts) != length):
        raise _bad_cursor(cursor)
    return parts


def _bad_cursor(cursor: str) -> InvalidInput:
    return InvalidInput(f"Cannot go on from the cursor {cursor!r}. Pass next_cursor of a page as it came.")
