"""The registry: all operations, on one SQL database and one artifact root."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from registry import labels, publishing, targets, versions
from registry.artifacts import ArtifactStore, check_saved_model
from registry.database import check_migrated, connect, is_empty, migrate, read, write
from registry.errors import VersionNotReady
from registry.gates import parse_rules
from registry.labels import UNSET, Expect
from registry.records import (
    Gate,
    GateReport,
    Model,
    ModelState,
    Promotion,
    ServingReport,
    ServingTarget,
    Swept,
    Version,
)
from registry.tables import Base, ModelRow, ServingReportRow, VersionRow
from registry.values import check_actor, check_label_name, check_model_name, plain_strings

MIGRATIONS = "registry:migrations"
VERSION_TABLE = "registry_alembic_version"
ABANDONED_AFTER_SECONDS = 3600.0


class Registry:
    """Models, immutable versions, labels that move, their history. Safe to share between threads.

    Every operation is one transaction, tried again when another was in its way. Any of them may raise
    `registry.errors.DatabaseUnavailable`; what else they raise is a `registry.errors.RegistryError` too.
    """

    def __init__(
        self, database: str | Engine, artifact_root: str | os.PathLike[str], *, migrate: bool = True
    ) -> None:
        """Open the registry, making or bringing up to date its tables.

        Args:
            database: a URL, `sqlite:///file.db` or `postgresql://...`, or an engine from
                `registry.database.connect`.
            artifact_root: a local folder or an fsspec URL; versions are kept at `<root>/<model>/<version>/`.
            migrate: whether tables of an older release may be migrated. Tables are made in an empty database
                anyway.

        Raises:
            DatabaseUnavailable: the database cannot be reached or opened.
            DatabaseTooOld: it was made by an older release, and `migrate` is false.
            DatabaseTooNew: it was made by a newer release.
            InvalidInput: the URL or root cannot be read.
        """
        self._store = ArtifactStore(os.fspath(artifact_root))
        self._owns_engine = isinstance(database, str)
        self._engine = connect(database) if isinstance(database, str) else database
        if migrate or is_empty(self._engine, VERSION_TABLE):
            migrate_registry(self._engine)
        else:
            url = self._engine.url.render_as_string(hide_password=True)
            check_migrated(self._engine, MIGRATIONS, VERSION_TABLE, f"python -m registry migrate '{url}'")

    def close(self) -> None:
        """Close the connections, unless the engine came from outside."""
        if self._owns_engine:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Models and versions

    def create_model(self, name: str, description: str = "", exist_ok: bool = False) -> Model:
        """Add a model and return it; with `exist_ok`, return the one that is there, as it is.

        Raises:
            InvalidName: the name does not match `[A-Za-z0-9][A-Za-z0-9_.-]{0,127}`.
            ModelExists: there is one, and `exist_ok` is false.
        """
        check_model_name(name)

        def work(session: Session) -> ModelRow:
            row, is_new = versions.create_model(session, name, description, exist_ok)
            if is_new:
                targets.count_up(session)
            return row

        return versions.to_model(write(self._engine, work))

    def models(self) -> list[Model]:
        """Return all models, by name."""
        rows = read(
            self._engine, lambda session: session.scalars(select(ModelRow).order_by(ModelRow.name)).all()
        )
        return [versions.to_model(row) for row in rows]

    def versions(self, model: str, *, include_deleted: bool = False) -> list[Version]:
        """Return the versions of a model, newest first, in every state but `deleted` unless asked for.

        Raises:
            ModelNotFound: there is no such model.
        """
        query = select(VersionRow).where(VersionRow.model == model).order_by(VersionRow.version.desc())
        if not include_deleted:
            query = query.where(VersionRow.state != "deleted")

        def work(session: Session) -> Sequence[VersionRow]:
            versions.find_model(session, model)
            return session.scalars(query).all()

        return [versions.to_version(row, self._store) for row in read(self._engine, work)]

    def version(self, model: str, number: int) -> Version:
        """Return one version, in whatever state. Raises ModelNotFound or VersionNotFound."""
        row = read(self._engine, lambda session: versions.find_version(session, model, number))
        return versions.to_version(row, self._store)

    def publish(
        self,
        model: str,
        directory: str | os.PathLike[str],
        *,
        metrics: Mapping[str, float] | None = None,
        params: Mapping[str, Any] | None = None,
        step: int | None = None,
        job: str = "",
        source_revision: str = "",
        libraries: Mapping[str, str] | None = None,
        signatures: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        description: str = "",
    ) -> Version:
        """Register the SavedModel in `directory` as the next version of `model`, and return it, ready.

        The files are copied; `directory` may go afterwards. All or nothing: a version that cannot be brought
        into place whole, even by a crash, is never visible as ready, and its number is not used again.

        Args:
            model: an existing model.
            directory: contains `saved_model.pb` (or `.pbtxt`).
            metrics: of the evaluation, by TensorFlow's metric keys; nan and infinities are kept.
            params: hyperparameters; anything JSON can hold (infinities and nan become strings).
            step: the global step of the checkpoint.
            job: id of the job that made it.
            source_revision: of the code that made it.
            libraries: name to version.
            signatures: name to a description of inputs and outputs, as JSON.
            tags: free strings by key; they may be changed later.
            description: free text; it may be changed later.

        Raises:
            ModelNotFound: there is no such model.
            InvalidSavedModel: `directory` is none.
            InvalidInput: a value cannot be stored.
            PublishFailed: the files could not be read, written or verified; the version is kept as `failed`.
        """
        path = check_saved_model(directory)
        facts = versions.Facts.checked(
            signatures=signatures,
            metrics=metrics,
            params=params,
            step=step,
            job=job,
            source_revision=source_revision,
            libraries=libraries,
            tags=tags,
            description=description,
        )
        return publishing.publish(self._engine, self._store, model, path, facts)

    def describe_version(
        self,
        model: str,
        number: int,
        *,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Version:
        """Replace the tags or the description, the two things of a version that may change, and return it.

        Raises:
            VersionNotFound: there is no such version.
            InvalidInput: a tag is no string.
        """
        new_tags = None if tags is None else plain_strings(tags, "tags")

        def work(session: Session) -> VersionRow:
            versions.find_model(session, model, lock=True)
            row = versions.find_version(session, model, number)
            row.tags = row.tags if new_tags is None else new_tags
            row.description = row.description if description is None else description
            return row

        return versions.to_version(write(self._engine, work), self._store)

    def delete_version(self, model: str, version: int, actor: str) -> None:
        """Make a version unusable for good and remove its files. Its number is not used again.

        Raises:
            VersionNotFound: there is no such version.
            VersionInUse: a label points to it, or it is still being published.
            OSError: it is deleted, but the store would not remove the files; `sweep` tries again.
        """
        check_actor(actor)

        def work(session: Session) -> None:
            versions.delete(session, model, version, actor)
            targets.count_up(session)

        write(self._engine, work)
        self._store.remove(model, version)

    def sweep(self, older_than_seconds: float = ABANDONED_AFTER_SECONDS) -> list[Swept]:
        """Remove the files of failed, deleted and abandoned versions, and return what was removed.

        A pending version counts as abandoned when its publisher has not been heard of for
        `older_than_seconds`; it then becomes `failed`. A publisher at work is heard of every ten seconds or
        so.
        """
        return publishing.sweep(self._engine, self._store, older_than_seconds)

    # Labels

    def labels(self, model: str) -> dict[str, int]:
        """Return the version under each label. Raises ModelNotFound."""

        def work(session: Session) -> dict[str, int]:
            versions.find_model(session, model)
            return labels.of_model(session, model)

        return read(self._engine, work)

    def resolve(self, model: str, label_or_number: str | int) -> Version:
        """Return the ready version that a label or a number stands for.

        Raises:
            ModelNotFound, LabelNotFound, VersionNotFound: as they say.
            VersionNotReady: it is pending, failed or deleted.
        """

        def work(session: Session) -> VersionRow:
            if isinstance(label_or_number, int) or label_or_number.isdecimal():
                row = versions.find_version(session, model, int(label_or_number))
            else:
                row = versions.find_version(
                    session, model, labels.find_label(session, model, label_or_number).version
                )
            if row.state != "ready":
                raise VersionNotReady(model, row.version, row.state, row.error)
            return row

        return versions.to_version(read(self._engine, work), self._store)

    def promote(
        self,
        model: str,
        version: int,
        *,
        label: str = "production",
        expect: Expect = UNSET,
        actor: str,
        reason: str = "",
        force: bool = False,
    ) -> Promotion:
        """Move a label to a version that its gate lets through, and record it. A new label is made.

        When the label is on this version already nothing is done, and the move that brought it there is
        returned.

        Args:
            model: the model.
            version: a ready version of it.
            label: `production`, `canary`, or any name.
            expect: the version the label must be on for the move to happen, or None for a label that is not
                there yet. Not given: wherever it is.
            actor: who does it.
            reason: why.
            force: promote in spite of what the gate says; needs a reason, and is recorded.

        Raises:
            ModelNotFound, VersionNotFound: as they say.
            VersionNotReady, ArtifactMissing: the version cannot be served.
            LabelMoved: the label is not on the expected version.
            GateRefused: carries the report.
            InvalidInput: a bad label name, no actor, or force without a reason.
        """
        check_label_name(label)
        check_actor(actor)
        labels.check_reason(force, reason)
        row = write(
            self._engine,
            lambda session: labels.promote(
                session,
                self._store,
                model,
                version,
                label=label,
                expect=expect,
                actor=actor,
                reason=reason,
                force=force,
            ),
        )
        return labels.to_promotion(row)

    def rollback(
        self,
        model: str,
        *,
        label: str = "production",
        to: int | None = None,
        expect: Expect = UNSET,
        actor: str,
        reason: str = "",
    ) -> Promotion:
        """Move a label back to the version that served before; again, further back. Asks no gate.

        Args:
            model: the model.
            label: the label.
            to: a version that was under this label at some time; afterwards, going further back goes on from
                where the label stood then.
            expect: as for `promote`.
            actor: who does it.
            reason: why.

        Raises:
            RollbackRefused: nothing was there before, `to` never was, or the version cannot be used any more.
            ModelNotFound, VersionNotFound: as they say.
            LabelMoved: the label is not on the expected version.
        """
        check_label_name(label)
        check_actor(actor)
        row = write(
            self._engine,
            lambda session: labels.roll_back(
                session, self._store, model, label=label, to=to, expect=expect, actor=actor, reason=reason
            ),
        )
        return labels.to_promotion(row)

    def undo_promotion(
        self, promotion: int | Promotion, reason: str, *, actor: str = "reconciler"
    ) -> Promotion:
        """Restore what was before a move whose version will not load; recorded as `undo`.

        The label goes back to where it was, or away when it was nowhere. Undoing twice is the same as once.
        An undo can be undone too, which goes further back, not forward again.

        Raises:
            PromotionNotFound: the history has no such entry.
            UndoRefused: the label has moved since.
        """
        check_actor(actor)
        promotion_id = promotion if isinstance(promotion, int) else promotion.id
        return labels.to_promotion(
            write(self._engine, lambda session: labels.undo(session, promotion_id, actor, reason))
        )

    def remove_label(
        self, model: str, label: str, *, expect: Expect = UNSET, actor: str, reason: str = ""
    ) -> Promotion:
        """Take a label away. `rollback` brings it back. Raises LabelNotFound, LabelMoved."""
        check_actor(actor)
        return labels.to_promotion(
            write(self._engine, lambda session: labels.remove(session, model, label, expect, actor, reason))
        )

    def history(self, model: str, label: str | None = None, *, limit: int | None = None) -> list[Promotion]:
        """Return the moves of the labels, newest first. Raises ModelNotFound."""
        rows = read(self._engine, lambda session: labels.history(session, model, label, limit))
        return [labels.to_promotion(row) for row in rows]

    # Gates

    def set_gate(self, model: str, label: str, rules: Sequence[str], actor: str) -> Gate:
        """Declare what a version must meet before the label may move to it. No rules: anything may pass.

        Raises:
            InvalidRule: a rule cannot be read; see `registry.gates` for how they are written.
            ModelNotFound: there is no such model.
        """
        check_label_name(label)
        check_actor(actor)
        texts = tuple(rule.text for rule in parse_rules(rules))
        return write(self._engine, lambda session: labels.set_gate(session, model, label, texts, actor))

    def gate(self, model: str, label: str) -> Gate:
        """Return the gate of a label; its rules are empty when none were set. Raises ModelNotFound."""
        return read(self._engine, lambda session: labels.find_gate(session, model, label))

    def check_gate(self, model: str, version: int, label: str) -> GateReport:
        """Return what the gate of a label says about a version, without moving anything."""

        def work(session: Session) -> GateReport:
            row = versions.find_version(session, model, version)
            return labels.check_gate(session, self._store, versions.to_version(row, self._store), label)

        return read(self._engine, work)

    # Serving

    def revision(self) -> int:
        """Return a number that rises when `serving_targets` changes. It costs one row: poll it."""
        return read(self._engine, targets.revision)

    def serving_targets(self) -> list[ServingTarget]:
        """Return what should be loaded, for every model, by name."""
        return read(self._engine, lambda session: targets.serving_targets(session, self._store))

    def report_serving(self, gateway: str, revision: int, states: Mapping[str, ModelState]) -> None:
        """Say what a gateway does now, in place of its last report. Each call writes, so not on every poll.

        Args:
            gateway: the gateway's own name, at most 256 characters.
            revision: the registry's revision it has acted upon.
            states: by model.
        """
        stored = targets.states_to_json(states)

        def work(session: Session) -> None:
            row = ServingReportRow(gateway=gateway, revision=revision, states=stored, at=versions.now())
            session.merge(row)

        write(self._engine, work)

    def serving_reports(self) -> list[ServingReport]:
        """Return the newest report of each gateway, by name."""
        query = select(ServingReportRow).order_by(ServingReportRow.gateway)
        rows = read(self._engine, lambda session: session.scalars(query).all())
        return [targets.to_serving_report(row) for row in rows]


def migrate_registry(engine: Engine) -> None:
    """Make the registry's tables, or bring them up to date. Raises DatabaseTooNew, DatabaseUnavailable."""
    migrate(engine, MIGRATIONS, VERSION_TABLE, Base.metadata)
