"""What may be done with the registry, on plain JSON values: behind the HTTP routes and the command alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import registry
from appliance.api.models import MoveLabel, RollBack, gate_json, model_json, promotion_json, version_json
from appliance.api.waiting import wait_until_served

Json = dict[str, Any]


class RegistryOperations:
    """The operations on one registry. All raise the registry's errors."""

    def __init__(self, house: registry.Registry, on_move: Callable[[], None] = lambda: None) -> None:
        """Take the registry; `on_move` is called when a label has moved, so that nobody waits for a poll."""
        self._house, self._on_move = house, on_move

    @property
    def house(self) -> registry.Registry:
        """The registry."""
        return self._house

    def models(self) -> list[Json]:
        """Return all models with their labels."""
        return [model_json(model, self._house.labels(model.name)) for model in self._house.models()]

    def model(self, model: str) -> Json:
        """Return a model with its labels."""
        labels = self._house.labels(model)
        return next(model_json(entry, labels) for entry in self._house.models() if entry.name == model)

    def versions(self, model: str) -> list[Json]:
        """Return the versions of a model, newest first."""
        return [version_json(entry) for entry in self._house.versions(model)]

    def version(self, model: str, version: str) -> Json:
        """Return a version by its number or by a label, as text."""
        by_number = version.isdecimal()
        return version_json(
            self._house.version(model, int(version)) if by_number else self._house.resolve(model, version)
        )

    def labels(self, model: str) -> dict[str, int]:
        """Return the version behind each label."""
        return dict(self._house.labels(model))

    def promote(self, model: str, label: str, request: MoveLabel, actor: str) -> Json:
        """Move a label to a version, and wait for serving if asked to.

        Raises:
            LoadFailed: the version would not load.
        """
        move = self._house.promote(
            model,
            request.version,
            label=label,
            actor=actor,
            reason=request.reason,
            force=request.force,
            **_expectation(request.expect),
        )
        return self._followed(move, request.wait_seconds)

    def rollback(self, model: str, label: str, request: RollBack, actor: str) -> Json:
        """Move a label back, and wait for serving if asked to.

        Raises:
            LoadFailed: the version would not load.
        """
        move = self._house.rollback(
            model,
            label=label,
            to=request.to,
            actor=actor,
            reason=request.reason,
            **_expectation(request.expect),
        )
        return self._followed(move, request.wait_seconds)

    def history(self, model: str, label: str | None) -> list[Json]:
        """Return the moves of labels, newest first."""
        return [promotion_json(move) for move in self._house.history(model, label)]

    def gate(self, model: str, label: str) -> Json:
        """Return the gate of a label."""
        return gate_json(self._house.gate(model, label))

    def set_gate(self, model: str, label: str, rules: list[str], actor: str) -> Json:
        """Set the gate of a label, and return it."""
        self._house.set_gate(model, label, rules, actor)
        return self.gate(model, label)

    def check_gate(self, model: str, version: int, label: str) -> Json:
        """Return what the gate of a label says about a version; nothing moves."""
        return self._house.check_gate(model, version, label).to_json()

    def delete_version(self, model: str, version: int, actor: str) -> None:
        """Delete a version that no label needs."""
        self._house.delete_version(model, version, actor)

    def _followed(self, move: registry.Promotion, wait_seconds: float) -> Json:
        self._on_move()
        serving = wait_until_served(self._house, move, wait_seconds) if wait_seconds else None
        return promotion_json(move, serving)


def _expectation(expect: int | None) -> dict[str, Any]:
    """Return the argument `expect` of the registry: left out for any version, None for no version."""
    return {} if expect is None else {"expect": expect or None}
