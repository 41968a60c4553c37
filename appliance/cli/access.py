"""The registry as the command sees it: over HTTP, or directly in the database of the settings.

Either way it is a client, which sends its requests to a server or to the operations behind one. The
reconciler polls the database, so serving follows a direct change as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from appliance.client import Client
from appliance.client.transport import default_actor

if TYPE_CHECKING:
    import registry


def is_remote(url: str | None) -> bool:
    """Return whether the commands go over HTTP."""
    return bool(url or os.environ.get("APPLIANCE_URL"))


@contextmanager
def registry_access(url: str | None) -> Iterator[Client]:
    """Give the registry: over HTTP when `url` or APPLIANCE_URL is given, else that of the settings."""
    if is_remote(url):
        with Client(url) as client:
            yield client
        return
    with open_registry() as store:
        from appliance.api.operations import RegistryOperations
        from appliance.cli.direct import DirectTransport
        from appliance.cli.start import read_settings
        from appliance.trainer.jobs import JobStore
        from serving import smoke

        jobs = JobStore(read_settings().database_url, migrate=False)
        try:
            operations = RegistryOperations(store, jobs=jobs, predictor=smoke.predict)
            yield Client.over(DirectTransport(operations, default_actor()))
        finally:
            jobs.close()


@contextmanager
def open_registry(*, migrate: bool = False) -> Iterator[registry.Registry]:
    """Give the registry of the settings; its errors become the client's. `migrate`: an older one too."""
    import registry
    from appliance.api.errors import LoadFailed, problem_of
    from appliance.cli.start import read_settings
    from appliance.client.errors import error_for

    settings = read_settings()
    try:
        store = registry.Registry(settings.database_url, settings.artifact_root, migrate=migrate)
        try:
            yield store
        finally:
            store.close()
    except (registry.errors.RegistryError, LoadFailed) as error:
        problem = problem_of(error)
        raise error_for(problem.status, problem.code, problem.message) from error
