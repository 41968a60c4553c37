"""Models and their versions: rows in, records out. Every function works inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete as delete_rows
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from registry import events
from registry.artifacts import ArtifactStore, Manifest
from registry.deadlines import within
from registry.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    InvalidInput,
    ModelExists,
    ModelNotFound,
    VersionInUse,
    VersionNotFound,
    VersionNotReady,
)
from registry.index_tables import TagRow
from registry.records import Damage, FileDigest, Model, Version
from registry.searching import index_rows
from registry.tables import LabelRow, ModelRow, VersionRow
from registry.values import (
    MODEL_NAME,
    check_text,
    plain,
    plain_metrics,
    plain_strings,
    read_metrics,
    storable,
)

SHOWN_IN_ERRORS = 10
"""How many known names or numbers an error lists."""
STORE_SECONDS = 5.0
"""How long a label waits for a store's word on the files of a version before it goes without it."""
ABANDONED = "abandoned: the publisher was not heard of any more"
MORE_THAN_ANY_NUMBER = 2**31
"""PostgreSQL's integers end here; a larger number is an unknown version and no error of the database."""


@dataclass(frozen=True)
class Facts:
    """What a publisher says about a version, checked and ready to be stored."""

    signatures: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    job: str = ""
    source_revision: str = ""
    data_fingerprint: str = ""
    libraries: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    description: str = ""

    @classmethod
    def checked(
        cls,
        *,
        signatures: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        params: Mapping[str, Any] | None = None,
        step: int | None = None,
        job: str = "",
        source_revision: str = "",
        data_fingerprint: str = "",
        libraries: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        description: str = "",
    ) -> Facts:
        """Return the facts. Raises InvalidInput for values that no database could keep."""
        if step is not None and step < 0:
            raise InvalidInput(f"Cannot store step {step!r}: it counts training steps from 0.")
        return cls(
            signatures=plain(dict(signatures or {}), "signatures"),
            metrics=plain_metrics(metrics or {}),
            params=plain(dict(params or {}), "params"),
            step=None if step is None else int(step),
            job=check_text(job, "job"),
            source_revision=check_text(source_revision, "source_revision"),
            data_fingerprint=check_text(data_fingerprint, "data_fingerprint"),
            libraries=plain_strings(libraries or {}, "libraries"),
            tags=plain_strings(tags or {}, "tags"),
            description=check_text(description, "description"),
        )


def now() -> datetime:
    """Return the moment, in UTC."""
    return datetime.now(UTC)


def find_model(session: Session, name: str, *, lock: bool = False) -> ModelRow:
    """Return the model's row; with `lock`, other writers of this model wait until the transaction ends.

    Raises:
        ModelNotFound: there is no such model.
    """
    # A name that no model can have is not even looked for: some databases refuse such text.
    row = session.get(ModelRow, name, with_for_update=lock or None) if MODEL_NAME.fullmatch(name) else None
    if row is None:
        known = session.scalars(select(ModelRow.name).order_by(ModelRow.name).limit(SHOWN_IN_ERRORS))
        raise ModelNotFound(name, tuple(known))
    return row


def create_model(
    session: Session, name: str, description: str, exist_ok: bool, actor: str
) -> tuple[ModelRow, bool]:
    """Return the model's row and whether it is new. Raises ModelExists when it is not, unless `exist_ok`."""
    row = session.get(ModelRow, name)
    if row is not None:
        if not exist_ok:
            raise ModelExists(name)
        return row, False
    row = ModelRow(name=name, description=description, tags={}, next_version=1, created_at=now())
    session.add(row)
    session.flush()
    events.record(session, name, "model.created", actor=actor)
    return row, True


def describe_model(
    session: Session, model: str, tags: dict[str, str] | None, description: str | None, actor: str
) -> ModelRow:
    """Replace the tags of a model, its description, or both, where they differ from what is there."""
    row = find_model(session, model, lock=True)
    if tags is not None and tags != row.tags:
        change = {"before": row.tags, "after": tags}
        row.tags = tags
        events.record(session, model, "model.tagged", actor=actor, details=change)
    if description is not None and description != row.description:
        words = {"before": row.description, "after": description}
        row.description = description
        events.record(session, model, "model.described", actor=actor, details=words)
    return row


def find_version(session: Session, model: str, number: int) -> VersionRow:
    """Return the version's row. Raises ModelNotFound or VersionNotFound."""
    may_be = MODEL_NAME.fullmatch(model) and 0 < number < MORE_THAN_ANY_NUMBER
    row = session.get(VersionRow, (model, number)) if may_be else None
    if row is None:
        find_model(session, model)
        newest = select(VersionRow.version).where(VersionRow.model == model, VersionRow.state != "deleted")
        known = session.scalars(newest.order_by(VersionRow.version.desc()).limit(SHOWN_IN_ERRORS))
        raise VersionNotFound(model, number, tuple(known))
    return row


def find_ready(session: Session, model: str, number: int) -> VersionRow:
    """Return the row of a version that is ready. Raises VersionNotFound or VersionNotReady."""
    row = find_version(session, model, number)
    if row.state != "ready":
        raise VersionNotReady(model, number, row.state, row.error)
    return row


def check_files(store: ArtifactStore, version: Version) -> None:
    """Compare names and sizes of a version's files with what was published.

    Not to be called inside a transaction: a store may take its time, and others would wait for the lock.

    Raises:
        ArtifactMissing: there is no SavedModel.
        ArtifactDamaged: some files are missing or of another size.
        ArtifactsUnavailable: the store does not answer; one that is not a local disk, not within
            `STORE_SECONDS`.
    """

    def compare() -> list[Damage]:
        return store.damages(version.model, version.version, version.manifest, hashes_up_to_bytes=0)

    with store.answering(version.model, version.version):
        found = compare() if store.is_local else within(STORE_SECONDS, compare)
    harmful = [damage for damage in found if damage.problem != "extra"]
    if harmful and not store.has_saved_model(version.model, version.version):
        raise ArtifactMissing(version.model, version.version, version.uri)
    if harmful:
        raise ArtifactDamaged(version.model, version.version, version.uri, harmful)


def allocate(session: Session, model: str, facts: Facts, actor: str, *, above: int = 0) -> int:
    """Add a pending version under the next number, greater than `above`, and return that number."""
    model_row = find_model(session, model, lock=True)
    number = max(model_row.next_version, above + 1)
    model_row.next_version = number + 1
    moment = now()
    session.add(
        VersionRow(
            model=model,
            version=number,
            state="pending",
            size_bytes=0,
            manifest={},
            created_at=moment,
            touched_at=moment,
            ready_at=None,
            deleted_at=None,
            deleted_by="",
            error="",
            **vars(facts),
        )
    )
    session.flush()
    session.add_all(index_rows(model, number, facts.metrics, facts.tags))
    events.record(session, model, "version.created", actor=actor, version=number)
    return number


def touch(session: Session, model: str, number: int) -> None:
    """Note that the publisher of a pending version is alive."""
    where = (VersionRow.model == model, VersionRow.version == number, VersionRow.state == "pending")
    session.execute(update(VersionRow).where(*where).values(touched_at=now()))


def finish(session: Session, model: str, number: int, manifest: Manifest, actor: str) -> VersionRow:
    """Make a pending version ready. Raises VersionNotReady when it is no longer pending."""
    find_model(session, model, lock=True)
    row = find_version(session, model, number)
    if row.state != "pending":
        raise VersionNotReady(model, number, row.state, row.error)
    row.manifest = {
        name: {"size_bytes": file.size_bytes, "sha256": file.sha256} for name, file in manifest.items()
    }
    row.size_bytes = sum(file.size_bytes for file in manifest.values())
    row.state, row.ready_at = "ready", now()
    events.record(session, model, "version.ready", actor=actor, version=number)
    return row


def fail(session: Session, model: str, number: int, reason: str, actor: str) -> None:
    """Make a pending version failed; leave any other as it is."""
    find_model(session, model, lock=True)
    row = find_version(session, model, number)
    if row.state == "pending":
        row.state, row.error = "failed", storable(reason)
        events.record(session, model, "version.failed", actor=actor, version=number, reason=reason)


def fail_abandoned(session: Session, model: str, older_than_seconds: float) -> None:
    """Make every abandoned version failed. The caller holds the model's lock."""
    for row in find_abandoned(session, model, older_than_seconds):
        row.state, row.error = "failed", ABANDONED
        events.record(session, model, "version.failed", actor="sweep", version=row.version, reason=row.error)


def find_abandoned(session: Session, model: str, older_than_seconds: float) -> Sequence[VersionRow]:
    """Return the pending versions whose publishers have not been heard of for that long."""
    silent = VersionRow.touched_at <= now() - timedelta(seconds=older_than_seconds)
    pending = (VersionRow.model == model, VersionRow.state == "pending", silent)
    return session.scalars(select(VersionRow).where(*pending)).all()


def without_files(session: Session, model: str) -> dict[int, str]:
    """Return the versions that should have no files, by number, with the reason."""
    columns = (VersionRow.version, VersionRow.error, VersionRow.deleted_by)
    over = (VersionRow.model == model, VersionRow.state.in_(("failed", "deleted")))
    rows = session.execute(select(*columns).where(*over))
    return {number: f"deleted by {by}" if by else error for number, error, by in rows}


def delete(session: Session, model: str, number: int, actor: str, reason: str = "") -> None:
    """Make a version deleted; a deleted one stays as it is.

    Raises:
        VersionInUse: a label points to it, or it is still being published.
    """
    find_model(session, model, lock=True)
    row = find_version(session, model, number)
    labels = session.scalars(
        select(LabelRow.label).where(LabelRow.model == model, LabelRow.version == number)
    ).all()
    if labels:
        raise VersionInUse(
            model, number, f"it is labelled {', '.join(labels)}; move or remove the label first"
        )
    if row.state == "pending":
        raise VersionInUse(
            model, number, "it is being published; if its publisher has died, gc gives it up after an hour"
        )
    if row.state != "deleted":
        row.state, row.deleted_at, row.deleted_by = "deleted", now(), actor
        events.record(session, model, "version.deleted", actor=actor, version=number, reason=reason)


def describe(
    session: Session,
    model: str,
    number: int,
    tags: dict[str, str] | None,
    description: str | None,
    actor: str,
) -> VersionRow:
    """Replace the tags, the description, or both, where they differ from what is there."""
    find_model(session, model, lock=True)
    row = find_version(session, model, number)
    if tags is not None and tags != row.tags:
        change = {"before": row.tags, "after": tags}
        replace_tags(session, row, tags)
        events.record(session, model, "version.tagged", actor=actor, version=number, details=change)
    if description is not None and description != row.description:
        words = {"before": row.description, "after": description}
        row.description = description
        events.record(session, model, "version.described", actor=actor, version=number, details=words)
    return row


def replace_tags(session: Session, row: VersionRow, tags: dict[str, str]) -> None:
    """Give a version these tags in place of its own, for itself and for search."""
    session.execute(delete_rows(TagRow).where(TagRow.model == row.model, TagRow.version == row.version))
    session.add_all(index_rows(row.model, row.version, {}, tags))
    row.tags = tags


def to_model(row: ModelRow) -> Model:
    """Return the record of a row."""
    return Model(row.name, row.description, row.created_at, row.tags)


def to_version(row: VersionRow, store: ArtifactStore) -> Version:
    """Return the record of a row."""
    return Version(
        model=row.model,
        version=row.version,
        state=row.state,
        uri=store.uri(row.model, row.version),
        size_bytes=row.size_bytes,
        manifest={name: FileDigest(**file) for name, file in row.manifest.items()},
        signatures=row.signatures,
        metrics=read_metrics(row.metrics),
        params=row.params,
        step=row.step,
        job=row.job,
        source_revision=row.source_revision,
        libraries=row.libraries,
        tags=row.tags,
        description=row.description,
        created_at=row.created_at,
        ready_at=row.ready_at,
        error=row.error,
        data_fingerprint=row.data_fingerprint,
    )
