"""The registry's operations on models and versions."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry import collecting, publishing, retention, targets, versions
from registry.artifacts import check_saved_model
from registry.errors import ArtifactsUnavailable, FilesNotRemoved, InvalidSavedModel
from registry.operations import Operations
from registry.records import Model, Swept, Version
from registry.signatures import read_signatures
from registry.tables import ModelRow, VersionRow
from registry.values import UNKNOWN_ACTOR, check_actor, check_model_name, check_text, plain_strings

log = logging.getLogger(__name__)


class VersionOperations(Operations):
    """Models and their versions."""

    def create_model(
        self, name: str, description: str = "", exist_ok: bool = False, *, actor: str = UNKNOWN_ACTOR
    ) -> Model:
        """Add a model and return it; with `exist_ok`, return the one that is there, as it is.

        Raises:
            InvalidName: the name does not match `[A-Za-z0-9][A-Za-z0-9_.-]{0,127}`.
            ModelExists: there is one, and `exist_ok` is false.
        """
        check_model_name(name)
        check_text(description, "description")
        check_actor(actor)

        def work(session: Session) -> ModelRow:
            row, is_new = versions.create_model(session, name, description, exist_ok, actor)
            if is_new:
                targets.count_up(session)
            return row

        return versions.to_model(self._write(work))

    def models(self) -> list[Model]:
        """Return all models, by name."""
        query = select(ModelRow).order_by(ModelRow.name)
        rows = self._read(lambda session: session.scalars(query).all())
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

        return [versions.to_version(row, self._store) for row in self._read(work)]

    def version(self, model: str, number: int) -> Version:
        """Return one version, in whatever state. Raises ModelNotFound or VersionNotFound."""
        row = self._read(lambda session: versions.find_version(session, model, number))
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
        data_fingerprint: str = "",
        libraries: Mapping[str, str] | None = None,
        signatures: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        description: str = "",
        actor: str = "",
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
            data_fingerprint: of the data it was trained on; `registry.fingerprints` computes one.
            libraries: name to version.
            signatures: name to a description of inputs and outputs, as `registry.signatures` reads it; not
                given: it is read from the SavedModel, and left empty where that cannot be.
            tags: free strings by key; they may be changed later.
            description: free text; it may be changed later.
            actor: who does it; not given: the job, if there is one.

        Raises:
            ModelNotFound: there is no such model.
            InvalidSavedModel: `directory` is none.
            InvalidInput: a value cannot be stored.
            PublishFailed: the files could not be read, written or verified; the version is kept as `failed`.
        """
        path = check_saved_model(directory)
        if signatures is None:
            signatures = _signatures_if_readable(path)
        facts = versions.Facts.checked(
            signatures=signatures,
            metrics=metrics,
            params=params,
            step=step,
            job=job,
            source_revision=source_revision,
            data_fingerprint=data_fingerprint,
            libraries=libraries,
            tags=tags,
            description=description,
        )
        actor = actor or (f"job {facts.job}" if facts.job else UNKNOWN_ACTOR)
        return publishing.publish(self._engine, self._store, model, path, facts, check_actor(actor))

    def describe_version(
        self,
        model: str,
        number: int,
        *,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        actor: str = UNKNOWN_ACTOR,
    ) -> Version:
        """Replace the tags or the description, the two things of a version that may change, and return it.

        Raises:
            VersionNotFound: there is no such version.
            InvalidInput: a tag is no string.
        """
        check_text(description or "", "description")
        check_actor(actor)
        new_tags = None if tags is None else plain_strings(tags, "tags")
        row = self._write(
            lambda session: versions.describe(session, model, number, new_tags, description, actor)
        )
        return versions.to_version(row, self._store)

    def delete_version(self, model: str, version: int, actor: str) -> None:
        """Make a version unusable for good and remove its files. Its number is not used again.

        The files of a version that a label has left within the last day stay until `gc` is run after that:
        somebody may still be serving it.

        Raises:
            VersionNotFound: there is no such version.
            VersionInUse: a label points to it, or it is still being published.
            FilesNotRemoved: it is deleted, but the store would not remove the files; `gc` tries again.
        """
        check_actor(actor)

        def work(session: Session) -> bool:
            versions.delete(session, model, version, actor)
            targets.count_up(session)
            return version in retention.spared(session, model, collecting.RECENT_SECONDS)

        if self._write(work):
            return
        try:
            with self._store.answering(model, version):
                self._store.remove(model, version)
        except ArtifactsUnavailable as error:
            raise FilesNotRemoved(model, version, error.uri, error.reason) from error

    def sweep(self, older_than_seconds: float = collecting.ABANDONED_AFTER_SECONDS) -> list[Swept]:
        """Remove the files of failed, deleted and abandoned versions, and return what was removed.

        A pending version counts as abandoned when its publisher has not been heard of for
        `older_than_seconds`; it then becomes `failed`. A publisher at work is heard of every ten seconds or
        so.
        """
        terms = collecting.Terms(older_than_seconds, apply_policies=False)
        return collecting.collect(self._engine, self._store, terms, dry_run=False)


def _signatures_if_readable(directory: Path) -> dict[str, Any]:
    """Return the signatures of a SavedModel; none for one in text form, or that TensorFlow has to judge."""
    try:
        return read_signatures(directory)
    except InvalidSavedModel as error:
        log.info("signatures_not_read", extra={"directory": str(directory), "error": str(error)})
        return {}
