"""The registry over HTTP: models, versions, labels, history, gates."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from appliance.api.access import actor_of
from appliance.api.models import GateRules, MoveLabel, RollBack
from appliance.api.operations import RegistryOperations


def versions_router(operations: RegistryOperations) -> APIRouter:
    """Return the routes of a registry."""
    router = APIRouter(prefix="/models")

    @router.get("")
    def list_models() -> Any:
        """Return all models with their labels."""
        return {"models": operations.models()}

    @router.get("/{model}")
    def get_model(model: str) -> Any:
        """Return a model with its labels."""
        return operations.model(model)

    @router.get("/{model}/versions")
    def list_versions(model: str) -> Any:
        """Return the versions of a model, newest first."""
        return {"versions": operations.versions(model)}

    @router.get("/{model}/versions/{version}")
    def get_version(model: str, version: str) -> Any:
        """Return a version, by number or label."""
        return operations.version(model, version)

    @router.delete("/{model}/versions/{version}", status_code=204)
    def delete_version(model: str, version: int, request: Request) -> Response:
        """Delete a version that no label needs."""
        operations.delete_version(model, version, actor_of(request))
        return Response(status_code=204)

    @router.get("/{model}/history")
    def history(model: str, label: str | None = None) -> Any:
        """Return the moves of labels, newest first."""
        return {"promotions": operations.history(model, label)}

    @router.get("/{model}/labels")
    def labels(model: str) -> Any:
        """Return the version behind each label."""
        return {"labels": operations.labels(model)}

    @router.put("/{model}/labels/{label}")
    def promote(model: str, label: str, body: MoveLabel, request: Request) -> Any:
        """Move a label to a version; with `wait_seconds`, until serving has followed."""
        return operations.promote(model, label, body, actor_of(request))

    @router.post("/{model}/labels/{label}/rollback")
    def rollback(model: str, label: str, body: RollBack, request: Request) -> Any:
        """Move a label back to the version before; with `wait_seconds`, until serving has followed."""
        return operations.rollback(model, label, body, actor_of(request))

    @router.get("/{model}/gates/{label}")
    def get_gate(model: str, label: str) -> Any:
        """Return the gate of a label."""
        return operations.gate(model, label)

    @router.put("/{model}/gates/{label}")
    def set_gate(model: str, label: str, body: GateRules, request: Request) -> Any:
        """Set the gate of a label."""
        return operations.set_gate(model, label, body.rules, actor_of(request))

    @router.get("/{model}/gates/{label}/report")
    def check_gate(model: str, label: str, version: int) -> Any:
        """Return what the gate says about a version; nothing moves."""
        return operations.check_gate(model, version, label)

    return router
