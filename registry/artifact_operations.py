"""The registry's operations on the files of versions: verify, import, export, collect what nobody needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry import collecting, publishing, retention, targets, versions
from registry.artifacts import CorruptUpload, check_saved_model
from registry.errors import ArtifactDamaged, ExportFailed, InvalidInput, RegistryError, VersionNotReady
from registry.operations import Operations
from registry.records import Damage, Retention, Swept, Verification, Version
from registry.signatures import read_saved_model
from registry.tables import VersionRow
from registry.values import UNKNOWN_ACTOR, check_actor, check_model_name, check_text

HASHED_UP_TO_BYTES = 256 << 20
"""Larger versions are not hashed before they are loaded, for nobody wants to wait that long for a rollback.
Their sizes are compared all the same, and TensorFlow checks the CRC-32C of every tensor that it reads."""


class ArtifactOperations(Operations):
    """The files of versions."""

    def verify(self, model: str, version: int | None = None) -> list[Verification]:
        """Read the files of a version, or of every ready version, again and compare with what was published.

        Returns:
            One entry for each version, by number, with every file that is missing, truncated, changed, or
            extra.

        Raises:
            ModelNotFound, VersionNotFound: as they say.
            VersionNotReady: the one asked for has no files to be compared with.
            ArtifactsUnavailable: the store does not answer.
        """

        def work(session: Session) -> list[Version]:
            versions.find_model(session, model)
            if version is not None:
                return [self._ready(session, model, version)]
            rows = select(VersionRow).where(VersionRow.model == model, VersionRow.state == "ready")
            return [
                versions.to_version(row, self._store)
                for row in session.scalars(rows.order_by(VersionRow.version))
            ]

        found = []
        for entry in self._read(work):
            with self._store.answering(model, entry.version):
                damages = self._store.damages(model, entry.version, entry.manifest)
            if not damages or self._still_ready(model, entry.version):
                found.append(Verification(model, entry.version, entry.uri, tuple(damages)))
        return found

    def damages(
        self, model: str, version: int, *, hashes_up_to_bytes: int | None = HASHED_UP_TO_BYTES
    ) -> list[Damage]:
        """Return what must keep a version from being loaded: files that are missing, truncated or changed.

        Files of no more than `hashes_up_to_bytes` together (None: of any size) are read and hashed; of larger
        versions the sizes are compared. What is extra does no harm, and is for `verify` to tell.

        Raises:
            VersionNotFound, VersionNotReady: as they say.
            ArtifactsUnavailable: the store does not answer.
        """
        entry = self._read(lambda session: self._ready(session, model, version))
        with self._store.answering(model, version):
            found = self._store.damages(model, version, entry.manifest, hashes_up_to_bytes=hashes_up_to_bytes)
        return [damage for damage in found if damage.problem != "extra"]

    def import_model(
        self,
        model: str,
        directory: str | os.PathLike[str],
        *,
        metrics: Mapping[str, float] | None = None,
        source_revision: str = "",
        tags: Mapping[str, str] | None = None,
        description: str = "",
        actor: str = UNKNOWN_ACTOR,
    ) -> Version:
        """Register a SavedModel that was made elsewhere. A model of a new name is made.

        That it is one, and complete, is checked before anything is done; signatures and the version of
        TensorFlow are read from it. TensorFlow is not needed.

        Raises:
            InvalidSavedModel: it is none, or not complete, or has no graph to serve.
            InvalidName, InvalidInput: as they say.
            PublishFailed: as for `publish`.
        """
        check_model_name(model)
        check_actor(actor)
        path = check_saved_model(directory)
        facts = read_saved_model(path)
        libraries = {"tensorflow": facts.tensorflow_version} if facts.tensorflow_version else {}
        described = versions.Facts.checked(
            signatures=facts.signatures,
            metrics=metrics,
            libraries=libraries,
            source_revision=source_revision,
            tags=tags,
            description=description,
        )

        def make_model(session: Session) -> None:
            if versions.create_model(session, model, "", True, actor)[1]:
                targets.count_up(session)

        self._write(make_model)
        return publishing.publish(self._engine, self._store, model, path, described, actor)

    def export_version(self, model: str, version: int, directory: str | os.PathLike[str]) -> Path:
        """Copy the files of a version into a new folder, compare them with what was published, return it.

        Args:
            model: the model.
            version: a ready version of it.
            directory: the folder to be made, or an empty one.

        Raises:
            VersionNotFound, VersionNotReady: as they say.
            ArtifactMissing, ArtifactDamaged: the files are not those that were published.
            InvalidInput: the folder is there and not empty.
            ArtifactsUnavailable: the store does not answer.
            ExportFailed: a file cannot be read or written. Nothing half is left.
        """
        target = Path(check_text(os.fspath(directory), "the folder")).absolute()
        entry = self._read(lambda session: self._ready(session, model, version))
        versions.check_files(self._store, entry)
        try:
            self._copy_out(entry, target)
        except CorruptUpload as error:
            found = self._store.damages(model, version, entry.manifest)
            raise ArtifactDamaged(model, version, entry.uri, found) from error
        except RegistryError:
            raise
        except Exception as error:
            # Of the disk, or of one of fsspec's many stores, which raise what they like.
            reason = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            raise ExportFailed(model, version, str(target), reason) from error
        return target

    def _copy_out(self, entry: Version, target: Path) -> None:
        """Copy the files of a version into a folder beside `target`, which then takes that name."""
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InvalidInput(f"Cannot export to {str(target)!r}: it is there and not empty. Name another.")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}."[:64], dir=target.parent))
        try:
            self._store.download(entry.model, entry.version, entry.manifest, partial)
            partial.chmod(0o755)
            os.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def set_retention(
        self, model: str, *, keep_last: int | None, keep_production: bool = True, actor: str
    ) -> Retention:
        """Say which versions of a model `gc` keeps; a new revision of its policy.

        Labelled versions, those labelled lately and those that a rollback would go to are kept in any case.

        Args:
            model: the model.
            keep_last: how many of the newest ready versions stay; None: all.
            keep_production: whether every version stays that ever was under `production`.
            actor: who says so.

        Raises:
            ModelNotFound: there is no such model.
            InvalidInput: `keep_last` is less than 1.
        """
        check_actor(actor)
        if keep_last is not None and not 1 <= keep_last < versions.MORE_THAN_ANY_NUMBER:
            raise InvalidInput(f"Cannot keep the last {keep_last} versions. Give 1 or more, or None for all.")
        return self._write(
            lambda session: retention.set_policy(session, model, keep_last, keep_production, actor)
        )

    def retention(self, model: str) -> Retention:
        """Return which versions of a model `gc` keeps. Raises ModelNotFound."""
        return self._read(lambda session: retention.find_policy(session, model))

    def gc(
        self,
        *,
        older_than_seconds: float = collecting.ABANDONED_AFTER_SECONDS,
        recent_seconds: float = collecting.RECENT_SECONDS,
        dry_run: bool = False,
    ) -> list[Swept]:
        """Delete what the retention policies let go, and remove the files that nobody can use.

        Those are the files of failed, deleted and abandoned versions. Nothing is taken of a version that is
        labelled, or was within `recent_seconds`: somebody may still be loading it. Killed at any point, it
        is finished by the next call.

        Args:
            older_than_seconds: for how long a publisher must not have been heard of to count as dead.
            recent_seconds: for how long a version is spared after a label has left it.
            dry_run: change nothing, and return what would be removed at this moment.

        Returns:
            What was removed, with its size and the reason; `error` says why, if it could not be.

        Raises:
            ArtifactsUnavailable: the store does not answer.
        """
        terms = collecting.Terms(older_than_seconds, recent_seconds)
        return collecting.collect(self._engine, self._store, terms, dry_run=dry_run)

    def _ready(self, session: Session, model: str, number: int) -> Version:
        row = versions.find_version(session, model, number)
        if row.state != "ready":
            raise VersionNotReady(model, number, row.state, row.error)
        return versions.to_version(row, self._store)

    def _still_ready(self, model: str, number: int) -> bool:
        """Return whether a version that looks damaged has not simply been deleted meanwhile."""
        return self._read(lambda session: versions.find_version(session, model, number)).state == "ready"
