"""The files of versions over HTTP: verify them, say which are kept, remove what nobody needs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from appliance.api import responses
from appliance.api.access import actor_of
from appliance.api.models import Collecting, RetentionPolicy
from appliance.api.operations import RegistryOperations
from appliance.api.queries import VerifyQuery
from appliance.api.versions import ModelName, answers


def upkeep_router(operations: RegistryOperations) -> APIRouter:
    """Return the routes of upkeep."""
    router = APIRouter(tags=["upkeep"])

    @router.get("/models/{model}/verification", **answers(responses.VerificationsBody))
    def verify(model: ModelName, query: Annotated[VerifyQuery, Query()]) -> Any:
        """Read the files of versions, and compare them with what was published. It takes its time."""
        return operations.verify(model, query)

    @router.get("/models/{model}/retention", **answers(responses.RetentionBody))
    def retention(model: ModelName) -> Any:
        """Return which versions of a model are kept."""
        return operations.retention(model)

    @router.put("/models/{model}/retention", **answers(responses.RetentionBody))
    def set_retention(model: ModelName, body: RetentionPolicy, request: Request) -> Any:
        """Say which versions of a model are kept; labelled ones are in any case."""
        return operations.set_retention(model, body, actor_of(request))

    @router.post("/gc", **answers(responses.RemovedBody))
    def gc(body: Collecting | None = None) -> Any:
        """Remove what the retention policies let go and files that nobody can use, or say what would go."""
        return operations.gc(body or Collecting(dry_run=False))

    return router
