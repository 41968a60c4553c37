"""What may be done with the registry, on plain JSON values: behind the HTTP routes and the command alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import registry
from appliance.api.models import (
    ModelChanges,
    MoveLabel,
    RollBack,
    VersionChanges,
    gate_json,
    model_json,
    promotion_json,
    summary_json,
    version_json,
)
from appliance.api.queries import HistoryQuery, ModelQuery, VersionQuery
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

    def models(self, query: ModelQuery) -> Json:
        """Return a page of models with their labels, by name."""
        page = self._house.search_models(**query.arguments())
        return {"models": [model_json(entry) for entry in page], "next_cursor": page.next_cursor}

    def model(self, model: str) -> Json:
        """Return a model with its labels."""
        return model_json(self._house.model(model))

    def change_model(self, model: str, changes: ModelChanges) -> Json:
        """Replace the tags or the description of a model, and return it."""
        self._house.describe_model(model, tags=changes.tags, description=changes.description)
        return self.model(model)

    def versions(self, model: str, query: VersionQuery) -> Json:
        """Return a page of the versions of a model."""
        page = self._house.search_versions(model, **query.arguments())
        return {"versions": [summary_json(entry) for entry in page], "next_cursor": page.next_cursor}

    def version(self, model: str, version: str) -> Json:
        """Return a version by its number or by a label, as text."""
        by_number = version.isdecimal()
        found = self._house.version(model, int(version)) if by_number else self._house.resolve(model, version)
        return version_json(found, self._house.labels(model))

    def change_version(self, model: str, version: int, changes: VersionChanges) -> Json:
        """Replace the tags or the description of a version, and return it."""
        self._house.describe_version(model, version, tags=changes.tags, description=changes.description)
        return self.version(model, str(version))

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

    def history(self, model: str, query: HistoryQuery) -> Json:
        """Return moves of labels, newest first."""
        limit = query.limit
        moves = self._house.history(model, query.label, before=query.before, limit=limit + 1)
        shown = moves[:limit]
        next_before = shown[-1].id if len(moves) > limit else None
        return {"promotions": [promotion_json(move) for move in shown], "next_before": next_before}

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
