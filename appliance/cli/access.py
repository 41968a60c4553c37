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


def number_of(access: Client, model: str, version: str) -> int:
    """Return the number of a version given by number or by label."""
    return int(version) if version.isdecimal() else access.version(model, version).version


@contextmanager
def open_registry() -> Iterator[registry.Registry]:
    """Give the registry of the settings; its errors become the client's."""
    import registry
    from appliance.cli.start import read_settings

    settings = read_settings()
    with (
        registry_errors(),
        registry.Registry(settings.database_url, settings.artifact_root, migrate=False) as store,
    ):
        yield store


@contextmanager
def registry_errors() -> Iterator[None]:
    """Turn errors of the registry into those that the client raises for them."""
    from appliance.api.errors import LoadFailed, problem_of
    from appliance.client.errors import error_for
    from registry.errors import RegistryError

    try:
        yield
    except (RegistryError, LoadFailed) as error:
        problem = problem_of(error)
        raise error_for(problem.status, problem.code, problem.message) from error
