"""The registry as the command sees it: over HTTP, or directly in the database of the settings.

The client is the one implementation, `DirectRegistry` the other. Both return the client's records and raise
the client's errors. The reconciler polls the database, so serving follows a direct change as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from appliance.client import Client
from appliance.client.results import Gate, GateReport, Model, Promotion, Version, parse
from appliance.client.transport import default_actor

if TYPE_CHECKING:
    import registry


class RegistryAccess(Protocol):
    """What the registry commands need."""

    def models(self) -> list[Model]:
        """Return all models."""

    def versions(self, model: str) -> list[Version]:
        """Return the versions of a model, newest first."""

    def version(self, model: str, version: int | str) -> Version:
        """Return a version, by number or label."""

    def labels(self, model: str) -> Mapping[str, int]:
        """Return the version behind each label."""

    def promote(
        self,
        model: str,
        version: int,
        *,
        label: str,
        expect: int | None,
        reason: str,
        force: bool,
        wait: float,
    ) -> Promotion:
        """Move a label to a version."""

    def rollback(
        self, model: str, *, label: str, to: int | None, expect: int | None, reason: str, wait: float
    ) -> Promotion:
        """Move a label back."""

    def history(self, model: str, *, label: str | None) -> list[Promotion]:
        """Return the moves of a model's labels, newest first."""

    def gate(self, model: str, *, label: str) -> Gate:
        """Return a gate."""

    def set_gate(self, model: str, rules: Sequence[str], *, label: str) -> Gate:
        """Set a gate."""

    def check_gate(self, model: str, version: int, *, label: str) -> GateReport:
        """Return what a gate says about a version."""

    def delete_version(self, model: str, version: int) -> None:
        """Delete a version."""


def is_remote(url: str | None) -> bool:
    """Return whether the commands go over HTTP."""
    return bool(url or os.environ.get("APPLIANCE_URL"))


@contextmanager
def registry_access(url: str | None) -> Iterator[RegistryAccess]:
    """Give the registry: over HTTP when `url` or APPLIANCE_URL is given, else that of the settings."""
    if is_remote(url):
        with Client(url) as client:
            yield client
        return
    with open_registry() as house:
        yield DirectRegistry(house)


@contextmanager
def open_registry() -> Iterator[registry.Registry]:
    """Give the registry of the settings; its errors become the client's."""
    import registry
    from appliance.api.errors import LoadFailed, problem_of
    from appliance.cli.start import read_settings
    from appliance.client.errors import error_for

    settings = read_settings()
    try:
        house = registry.Registry(settings.database_url, settings.artifact_root)
        try:
            yield house
        finally:
            house.close()
    except (registry.errors.RegistryError, LoadFailed) as error:
        problem = problem_of(error)
        raise error_for(problem.status, problem.code, problem.message) from error


class DirectRegistry:
    """The registry, without a server."""

    def __init__(self, house: registry.Registry) -> None:
        """Take the registry."""
        from appliance.api.operations import RegistryOperations

        self._operations = RegistryOperations(house)
        self._actor = default_actor()

    def models(self) -> list[Model]:
        """Return all models."""
        return [parse(Model, entry) for entry in self._operations.models()]

    def versions(self, model: str) -> list[Version]:
        """Return the versions of a model, newest first."""
        return [parse(Version, entry) for entry in self._operations.versions(model)]

    def version(self, model: str, version: int | str) -> Version:
        """Return a version, by number or label."""
        return parse(Version, self._operations.version(model, str(version)))

    def labels(self, model: str) -> Mapping[str, int]:
        """Return the version behind each label."""
        return self._operations.labels(model)

    def promote(
        self,
        model: str,
        version: int,
        *,
        label: str,
        expect: int | None,
        reason: str,
        force: bool,
        wait: float,
    ) -> Promotion:
        """Move a label to a version."""
        from appliance.api.models import MoveLabel

        request = MoveLabel(version=version, expect=expect, reason=reason, force=force, wait_seconds=wait)
        return parse(Promotion, self._operations.promote(model, label, request, self._actor))

    def rollback(
        self, model: str, *, label: str, to: int | None, expect: int | None, reason: str, wait: float
    ) -> Promotion:
        """Move a label back."""
        from appliance.api.models import RollBack

        request = RollBack(to=to, expect=expect, reason=reason, wait_seconds=wait)
        return parse(Promotion, self._operations.rollback(model, label, request, self._actor))

    def history(self, model: str, *, label: str | None) -> list[Promotion]:
        """Return the moves of a model's labels, newest first."""
        return [parse(Promotion, entry) for entry in self._operations.history(model, label)]

    def gate(self, model: str, *, label: str) -> Gate:
        """Return a gate."""
        return parse(Gate, self._operations.gate(model, label))

    def set_gate(self, model: str, rules: Sequence[str], *, label: str) -> Gate:
        """Set a gate."""
        return parse(Gate, self._operations.set_gate(model, label, list(rules), self._actor))

    def check_gate(self, model: str, version: int, *, label: str) -> GateReport:
        """Return what a gate says about a version."""
        return parse(GateReport, self._operations.check_gate(model, version, label))

    def delete_version(self, model: str, version: int) -> None:
        """Delete a version."""
        self._operations.delete_version(model, version, self._actor)
