"""Publishing: steps on both the database and the files, in an order that survives a crash.

A version's row comes first, as `pending`; then its files, in a pending place; then their place; then the row
becomes `ready`. Whoever dies on the way leaves a pending row, which no reader takes for a version, and which
`registry.collecting` finds.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from sqlalchemy import Engine

from registry import versions
from registry.artifacts import ArtifactStore
from registry.database import write
from registry.errors import PublishFailed, VersionNotReady
from registry.records import Version

TOUCH_SECONDS = 10.0
"""How often a publisher says that it is alive."""

log = logging.getLogger(__name__)


def publish(
    engine: Engine, store: ArtifactStore, model: str, directory: Path, facts: versions.Facts, actor: str
) -> Version:
    """Bring `directory`, checked, into the registry. See `Registry.publish`."""
    started = time.monotonic()
    # A number whose files are there belongs to a version that another database knew: a lost one, perhaps.
    taken = _newest_with_files(store, model)
    number = write(engine, lambda session: versions.allocate(session, model, facts, actor, above=taken))
    progress = _Progress(engine, model, number)
    try:
        manifest = store.upload(directory, model, number, progress)
        store.verify_upload(model, number, manifest, progress)
        store.install(model, number)
        version = write(
            engine,
            lambda session: versions.to_version(
                versions.finish(session, model, number, manifest, actor), store
            ),
        )
    except Exception as error:
        # Whatever went wrong, in any of fsspec's many stores, the version must not stay pending.
        reason = _reason(error)
        write(engine, lambda session: versions.fail(session, model, number, reason, actor))
        # Files that were in place before are not ours to remove.
        _remove(store, model, number, only_pending=isinstance(error, FileExistsError))
        raise PublishFailed(model, number, reason) from error
    fields = {"model": model, "version": number, "size_bytes": version.size_bytes}
    log.info("version_ready", extra={**fields, "publish_seconds": time.monotonic() - started})
    return version


class _Progress:
    """Says now and then, while files are copied, that the publisher is alive."""

    def __init__(self, engine: Engine, model: str, number: int) -> None:
        self._engine, self._model, self._number = engine, model, number
        self._touched = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._touched >= TOUCH_SECONDS:
            write(self._engine, lambda session: versions.touch(session, self._model, self._number))
            self._touched = time.monotonic()


def _reason(error: Exception) -> str:
    if isinstance(error, VersionNotReady):
        return f"it was declared {error.state} meanwhile ({error.error})"
    return f"{type(error).__name__}: {error}"


def _newest_with_files(store: ArtifactStore, model: str) -> int:
    try:
        numbers = store.leftover_candidates(model)
    except Exception:  # noqa: BLE001  # fsspec's many stores raise what they like
        return 0  # The upload will meet the same trouble, and tell it.
    return max((number for number in numbers if number < versions.MORE_THAN_ANY_NUMBER - 1), default=0)


def _remove(store: ArtifactStore, model: str, number: int, *, only_pending: bool) -> None:
    try:
        store.remove(model, number, only_pending=only_pending)
    except Exception as error:  # noqa: BLE001  # fsspec's many stores raise what they like
        # The store that refused the upload may refuse this too; sweep comes back to it.
        log.warning("leftover_not_removed", extra={"model": model, "version": number, "error": str(error)})
