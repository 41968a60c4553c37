"""The registry: all operations, on one SQL database and one artifact root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from registry import targets, versions
from registry.artifact_operations import ArtifactOperations
from registry.artifacts import ArtifactStore
from registry.database import connect, migrate, prepare
from registry.errors import RegistryError
from registry.gate_operations import GateOperations
from registry.label_operations import LabelOperations
from registry.records import ModelState, ServingReport, ServingTarget
from registry.search_operations import SearchOperations
from registry.tables import Base, ServingReportRow
from registry.version_operations import VersionOperations
from registry.webhook_operations import WebhookOperations

MIGRATIONS = "registry:migrations"
VERSION_TABLE = "registry_alembic_version"
MIGRATE_COMMAND = "appliance registry migrate"
"""What brings the database of the settings up to date; `python -m registry migrate URL` does so for any."""


class Registry(
    VersionOperations,
    LabelOperations,
    GateOperations,
    ArtifactOperations,
    SearchOperations,
    WebhookOperations,
):
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
        try:
            self._prepare_tables(migrate)
        except RegistryError:
            self.close()
            raise

    def _prepare_tables(self, migrate: bool) -> None:
        prepare(
            self._engine,
            MIGRATIONS,
            VERSION_TABLE,
            Base.metadata,
            may_migrate=migrate,
            migrate_command=MIGRATE_COMMAND,
        )

    def close(self) -> None:
        """Close the connections, unless the engine came from outside."""
        if self._owns_engine:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def revision(self) -> int:
        """Return a number that rises when `serving_targets` changes. It costs one row: poll it."""
        return self._read(targets.revision)

    def serving_targets(self) -> list[ServingTarget]:
        """Return what should be loaded, for every model, by name."""
        return self._read(lambda session: targets.serving_targets(session, self._store))

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

        self._write(work)

    def serving_reports(self) -> list[ServingReport]:
        """Return the newest report of each gateway, by name."""
        query = select(ServingReportRow).order_by(ServingReportRow.gateway)
        rows = self._read(lambda session: session.scalars(query).all())
        return [targets.to_serving_report(row) for row in rows]


def migrate_registry(engine: Engine) -> None:
    """Make the registry's tables, or bring them up to date. Raises DatabaseTooNew, DatabaseUnavailable."""
    migrate(engine, MIGRATIONS, VERSION_TABLE, Base.metadata)
