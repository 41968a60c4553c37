"""Collecting garbage: which files nobody needs any more, and removing them, or only saying so.

For each model one transaction settles what may go: it deletes the versions that the retention policy lets go
and gives up the abandoned ones. Only then are files removed, those of versions that can never be ready
again; so whoever is killed on the way leaves to the next call what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from registry import retention, targets, versions
from registry.artifacts import ArtifactStore
from registry.database import read, write
from registry.errors import ArtifactsUnavailable
from registry.records import Swept
from registry.tables import ModelRow

ABANDONED_AFTER_SECONDS = 3600.0
"""How long a publisher may be silent before its version is given up."""
RECENT_SECONDS = 86_400.0
"""How long the files of a version stay after a label has left it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """What counts as garbage."""

    older_than_seconds: float = ABANDONED_AFTER_SECONDS
    recent_seconds: float = RECENT_SECONDS
    apply_policies: bool = True
    """Whether the retention policies are applied, too."""


def collect(engine: Engine, store: ArtifactStore, terms: Terms, *, dry_run: bool) -> list[Swept]:
    """Remove what nobody needs, of every model, and return it; with `dry_run` only return it.

    What cannot be removed is returned with the error, and keeps nothing else from being removed.

    Raises:
        ArtifactsUnavailable: the store does not answer.
    """
    models = read(
        engine, lambda session: list(session.scalars(select(ModelRow.name).order_by(ModelRow.name)))
    )
    return [
        swept for model in models for swept in _collect_of_model(engine, store, model, terms, dry_run=dry_run)
    ]


def _collect_of_model(
    engine: Engine, store: ArtifactStore, model: str, terms: Terms, *, dry_run: bool
) -> Iterator[Swept]:
    if dry_run:
        useless = read(engine, lambda session: foresee(session, model, terms))
    else:
        useless = write(engine, lambda session: settle(session, model, terms))
    with store.answering(model):
        candidates = sorted(useless.keys() & store.leftover_candidates(model))
    for number in candidates:
        with store.answering(model, number):
            sizes = store.sizes(model, number)
        found = [Swept(model, number, uri, useless[number], size) for uri, size in sizes.items()]
        yield from found if dry_run else _remove(store, model, number, found)


def _remove(store: ArtifactStore, model: str, number: int, found: list[Swept]) -> list[Swept]:
    """Remove the files of a version; return those of `found` that are gone by it, or would not go."""
    try:
        with store.answering(model, number):
            gone = store.remove(model, number)
    except ArtifactsUnavailable as error:
        log.warning("files_not_removed", extra={"model": model, "version": number, "error": error.reason})
        return [replace(entry, error=error.reason) for entry in found]
    return [entry for entry in found if entry.uri in gone]


def settle(session: Session, model: str, terms: Terms) -> dict[int, str]:
    """Delete what the policy lets go, give up what is abandoned; return whose files may go, and why."""
    versions.find_model(session, model, lock=True)
    going = retention.apply_policy(session, model, terms.recent_seconds) if terms.apply_policies else {}
    if going:
        targets.count_up(session)
    versions.fail_abandoned(session, model, terms.older_than_seconds)
    return _not_spared(session, model, terms, {**versions.without_files(session, model), **going})


def foresee(session: Session, model: str, terms: Terms) -> dict[int, str]:
    """Return what `settle` would return now, and change nothing."""
    going = retention.going(session, model, terms.recent_seconds) if terms.apply_policies else {}
    abandoned = versions.find_abandoned(session, model, terms.older_than_seconds)
    useless = {
        **versions.without_files(session, model),
        **{row.version: versions.ABANDONED for row in abandoned},
        **going,
    }
    return _not_spared(session, model, terms, useless)


def _not_spared(session: Session, model: str, terms: Terms, useless: dict[int, str]) -> dict[int, str]:
    spared = retention.spared(session, model, terms.recent_seconds)
    return {number: reason for number, reason in useless.items() if number not in spared}
