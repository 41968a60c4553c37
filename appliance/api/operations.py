"""What may be done with the registry, on plain JSON values: behind the HTTP routes and the command alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import registry
from appliance.api.lineage import lineage_of
from appliance.api.models import (
    Approval,
    Collecting,
    ModelChanges,
    MoveLabel,
    NewWebhook,
    RemoveLabel,
    RetentionPolicy,
    RollBack,
    VersionChanges,
    event_json,
    gate_json,
    model_json,
    plain,
    promotion_json,
    summary_json,
    verification_json,
    version_json,
)
from appliance.api.queries import (
    DeliveryQuery,
    EventQuery,
    HistoryQuery,
    ModelQuery,
    VerifyQuery,
    VersionQuery,
    WebhookQuery,
)
from appliance.api.waiting import wait_until_served
from appliance.trainer.jobs import JobStore
from registry.predictions import Predictor

Json = dict[str, Any]


class RegistryOperations:
    """The operations on one registry. All raise the registry's errors."""

    def __init__(
        self,
        store: registry.Registry,
        on_move: Callable[[], None] = lambda: None,
        jobs: JobStore | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        """Take the registry, and what else there is.

        Args:
            store: the registry.
            on_move: called when a label has moved, so that nobody waits for a poll.
            jobs: the queue, for the lineage of versions.
            predictor: runs a version, for gates that ask for a prediction.
        """
        self._store, self._on_move, self._jobs = store, on_move, jobs
        self._predictor = predictor

    @property
    def store(self) -> registry.Registry:
        """The registry."""
        return self._store

    def models(self, query: ModelQuery) -> Json:
        """Return a page of models with their labels, by name."""
        page = self._store.search_models(**query.arguments())
        return {"models": [model_json(entry) for entry in page], "next_cursor": page.next_cursor}

    def model(self, model: str) -> Json:
        """Return a model with its labels."""
        return model_json(self._store.model(model))

    def change_model(self, model: str, changes: ModelChanges, actor: str) -> Json:
        """Replace the tags or the description of a model, and return it."""
        self._store.describe_model(model, tags=changes.tags, description=changes.description, actor=actor)
        return self.model(model)

    def versions(self, model: str, query: VersionQuery) -> Json:
        """Return a page of the versions of a model."""
        page = self._store.search_versions(model, **query.arguments())
        return {"versions": [summary_json(entry) for entry in page], "next_cursor": page.next_cursor}

    def version(self, model: str, version: str) -> Json:
        """Return a version by its number or by a label, as text."""
        return version_json(self._find(model, version), self._store.labels(model))

    def change_version(self, model: str, version: int, changes: VersionChanges, actor: str) -> Json:
        """Replace the tags or the description of a version, and return it."""
        self._store.describe_version(
            model, version, tags=changes.tags, description=changes.description, actor=actor
        )
        return self.version(model, str(version))

    def labels(self, model: str) -> dict[str, int]:
        """Return the version behind each label."""
        return dict(self._store.labels(model))

    def promote(self, model: str, label: str, request: MoveLabel, actor: str) -> Json:
        """Move a label to a version, and wait for serving if asked to.

        Raises:
            LoadFailed: the version would not load.
        """
        move = self._store.promote(
            model,
            request.version,
            label=label,
            actor=actor,
            reason=request.reason,
            force=request.force,
            predictor=self._predictor,
            **_expectation(request.expect),
        )
        return self._followed(move, request.wait_seconds)

    def rollback(self, model: str, label: str, request: RollBack, actor: str) -> Json:
        """Move a label back, and wait for serving if asked to.

        Raises:
            LoadFailed: the version would not load.
        """
        move = self._store.rollback(
            model,
            label=label,
            to=request.to,
            actor=actor,
            reason=request.reason,
            **_expectation(request.expect),
        )
        return self._followed(move, request.wait_seconds)

    def remove_label(self, model: str, label: str, request: RemoveLabel, actor: str) -> Json:
        """Take a label away."""
        expectation = _expectation(request.expect)
        move = self._store.remove_label(model, label, actor=actor, reason=request.reason, **expectation)
        return self._followed(move, 0.0)

    def history(self, model: str, query: HistoryQuery) -> Json:
        """Return moves of labels, newest first."""
        limit = query.limit
        moves = self._store.history(
            model, query.label, version=query.version, before=query.before, limit=limit + 1
        )
        shown = moves[:limit]
        next_before = shown[-1].id if len(moves) > limit else None
        return {"promotions": [promotion_json(move) for move in shown], "next_before": next_before}

    def events(self, model: str, query: EventQuery) -> Json:
        """Return the changes of everything of a model, newest first."""
        found = self._store.events(
            model,
            kinds=query.kind,
            version=query.version,
            label=query.label,
            before=query.before,
            limit=query.limit + 1,
        )
        shown = found[: query.limit]
        next_before = shown[-1].id if len(found) > query.limit else None
        return {"events": [event_json(event) for event in shown], "next_before": next_before}

    def lineage(self, model: str, version: str) -> Json:
        """Return where a version, by number or label, comes from and what became of it."""
        return lineage_of(self._store, self._jobs, self._find(model, version))

    def approve(self, model: str, version: int, request: Approval, actor: str) -> Json:
        """Say that a version may go under a label."""
        return plain(vars(self._store.approve(model, version, request.label, actor, request.comment)))

    def verify(self, model: str, query: VerifyQuery) -> Json:
        """Compare the files of versions with what was published."""
        found = self._store.verify(model, query.version)
        return {"versions": [verification_json(entry) for entry in found]}

    def retention(self, model: str) -> Json:
        """Return which versions of a model are kept."""
        return plain(vars(self._store.retention(model)))

    def set_retention(self, model: str, request: RetentionPolicy, actor: str) -> Json:
        """Say which versions of a model are kept."""
        return plain(vars(self._store.set_retention(model, **request.model_dump(), actor=actor)))

    def gc(self, request: Collecting) -> Json:
        """Remove what the retention policies let go and files that nobody can use, or say what would go."""
        return {"removed": [plain(vars(entry)) for entry in self._store.gc(dry_run=request.dry_run)]}

    def webhooks(self, query: WebhookQuery) -> Json:
        """Return the webhooks, without their secrets."""
        return {"webhooks": [plain(vars(hook)) for hook in self._store.webhooks(query.model)]}

    def add_webhook(self, request: NewWebhook, actor: str) -> Json:
        """Add a webhook, and return it with its secret."""
        return plain(vars(self._store.add_webhook(**request.model_dump(), actor=actor)))

    def remove_webhook(self, webhook: int, actor: str) -> None:
        """Remove a webhook."""
        self._store.remove_webhook(webhook, actor)

    def deliveries(self, webhook: int, query: DeliveryQuery) -> Json:
        """Return the deliveries of a webhook, newest first."""
        found = self._store.deliveries(webhook, **query.model_dump())
        return {"deliveries": [plain(vars(delivery)) for delivery in found]}

    def redeliver(self, delivery: int) -> Json:
        """Put a delivery into the outbox again."""
        return plain(vars(self._store.redeliver(delivery)))

    def gate(self, model: str, label: str) -> Json:
        """Return the gate of a label."""
        return gate_json(self._store.gate(model, label))

    def set_gate(self, model: str, label: str, rules: list[str], actor: str) -> Json:
        """Set the gate of a label, and return it."""
        self._store.set_gate(model, label, rules, actor)
        return self.gate(model, label)

    def check_gate(self, model: str, version: int, label: str) -> Json:
        """Return what the gate of a label says about a version; nothing moves."""
        return self._store.check_gate(model, version, label, predictor=self._predictor).to_json()

    def delete_version(self, model: str, version: int, actor: str) -> None:
        """Delete a version that no label needs."""
        self._store.delete_version(model, version, actor)

    def _find(self, model: str, version: str) -> registry.Version:
        if version.isdecimal():
            return self._store.version(model, int(version))
        return self._store.resolve(model, version)

    def _followed(self, move: registry.Promotion, wait_seconds: float) -> Json:
        self._on_move()
        serving = wait_until_served(self._store, move, wait_seconds) if wait_seconds else None
        return promotion_json(move, serving)


def _expectation(expect: int | None) -> dict[str, Any]:
    """Return the argument `expect` of the registry: left out for any version, None for no version."""
    return {} if expect is None else {"expect": expect or None}
