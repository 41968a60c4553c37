"""The registry over HTTP: models, versions, labels, history, gates."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from appliance.api import responses
from appliance.api.access import actor_of
from appliance.api.models import (
    Approval,
    GateRules,
    ModelChanges,
    MoveLabel,
    RemoveLabel,
    RollBack,
    VersionChanges,
)
from appliance.api.operations import RegistryOperations
from appliance.api.queries import EventQuery, HistoryQuery, ModelQuery, VersionQuery
from appliance.card import render_card

ModelName = Annotated[str, Path(description="The model's name.")]
VersionNumber = Annotated[int, Path(description="The version's number.")]
NumberOrLabel = Annotated[str, Path(description="The version's number, or a label.")]
LabelName = Annotated[str, Path(description="The label, `production` for instance.")]


class MarkdownResponse(PlainTextResponse):
    """A text in Markdown."""

    media_type = "text/markdown"


def answers(body: type[responses.Response], *refusals: int, success: int = 200) -> dict[str, Any]:
    """Return what a route is declared with: its answer and its refusals, for the OpenAPI page."""
    told = {status: {"model": responses.ErrorBody} for status in (400, 404, 422, *refusals)}
    return {"response_model": None, "responses": {success: {"model": body}, **told}}


def versions_router(operations: RegistryOperations) -> APIRouter:
    """Return the routes of a registry."""
    router = APIRouter(prefix="/models")
    _add_models(router, operations)
    _add_versions(router, operations)
    _add_labels(router, operations)
    _add_gates(router, operations)
    return router


def _add_models(router: APIRouter, operations: RegistryOperations) -> None:
    @router.get("", tags=["models"], **answers(responses.ModelsBody))
    def list_models(query: Annotated[ModelQuery, Query()]) -> Any:
        """Return a page of models with their labels, by name."""
        return operations.models(query)

    @router.get("/{model}", tags=["models"], **answers(responses.ModelBody))
    def get_model(model: ModelName) -> Any:
        """Return a model with its labels."""
        return operations.model(model)

    @router.patch("/{model}", tags=["models"], **answers(responses.ModelBody))
    def change_model(model: ModelName, body: ModelChanges, request: Request) -> Any:
        """Replace the tags or the description of a model."""
        return operations.change_model(model, body, actor_of(request))


def _add_versions(router: APIRouter, operations: RegistryOperations) -> None:
    @router.get("/{model}/versions", tags=["versions"], **answers(responses.VersionsBody))
    def list_versions(model: ModelName, query: Annotated[VersionQuery, Query()]) -> Any:
        """Return a page of the versions that meet everything asked for."""
        return operations.versions(model, query)

    @router.get("/{model}/versions/{version}", tags=["versions"], **answers(responses.VersionBody))
    def get_version(model: ModelName, version: NumberOrLabel) -> Any:
        """Return a version, by number or label."""
        return operations.version(model, version)

    @router.get("/{model}/versions/{version}/lineage", tags=["versions"], **answers(responses.LineageBody))
    def lineage(model: ModelName, version: NumberOrLabel) -> Any:
        """Return where a version comes from, its curves of training, and what became of it."""
        return operations.lineage(model, version)

    @router.get("/{model}/versions/{version}/card", tags=["versions"], response_class=MarkdownResponse)
    def card(model: ModelName, version: NumberOrLabel) -> Any:
        """Return the model card of a version, in Markdown."""
        return MarkdownResponse(render_card(operations.lineage(model, version)))

    @router.post("/{model}/versions/{version}/approvals", tags=["gates"], **answers(responses.ApprovalBody))
    def approve(model: ModelName, version: VersionNumber, body: Approval, request: Request) -> Any:
        """Say that a version may go under a label, for gates that ask for an approval."""
        return operations.approve(model, version, body, actor_of(request))

    @router.patch("/{model}/versions/{version}", tags=["versions"], **answers(responses.VersionBody))
    def change_version(
        model: ModelName, version: VersionNumber, body: VersionChanges, request: Request
    ) -> Any:
        """Replace the tags or the description of a version; nothing else of it ever changes."""
        return operations.change_version(model, version, body, actor_of(request))

    @router.delete("/{model}/versions/{version}", tags=["versions"], status_code=204)
    def delete_version(model: ModelName, version: VersionNumber, request: Request) -> Response:
        """Delete a version that no label needs."""
        operations.delete_version(model, version, actor_of(request))
        return Response(status_code=204)


def _add_labels(router: APIRouter, operations: RegistryOperations) -> None:
    @router.get("/{model}/history", tags=["history"], **answers(responses.HistoryBody))
    def history(model: ModelName, query: Annotated[HistoryQuery, Query()]) -> Any:
        """Return the moves of labels, newest first."""
        return operations.history(model, query)

    @router.get("/{model}/events", tags=["history"], **answers(responses.EventsBody))
    def events(model: ModelName, query: Annotated[EventQuery, Query()]) -> Any:
        """Return every change of the model and of all that belongs to it, newest first."""
        return operations.events(model, query)

    @router.get("/{model}/labels", tags=["labels"], **answers(responses.LabelsBody))
    def labels(model: ModelName) -> Any:
        """Return the version behind each label."""
        return {"labels": operations.labels(model)}

    @router.put("/{model}/labels/{label}", tags=["labels"], **answers(responses.PromotionBody, 409))
    def promote(model: ModelName, label: LabelName, body: MoveLabel, request: Request) -> Any:
        """Move a label to a version; with `wait_seconds`, until serving has followed."""
        return operations.promote(model, label, body, actor_of(request))

    @router.post("/{model}/labels/{label}/rollback", tags=["labels"], **answers(responses.PromotionBody, 409))
    def rollback(model: ModelName, label: LabelName, body: RollBack, request: Request) -> Any:
        """Move a label back to the version before; with `wait_seconds`, until serving has followed."""
        return operations.rollback(model, label, body, actor_of(request))

    @router.post("/{model}/labels/{label}/remove", tags=["labels"], **answers(responses.PromotionBody, 409))
    def remove_label(model: ModelName, label: LabelName, body: RemoveLabel, request: Request) -> Any:
        """Take a label away; a rollback brings it back."""
        return operations.remove_label(model, label, body, actor_of(request))


def _add_gates(router: APIRouter, operations: RegistryOperations) -> None:
    @router.get("/{model}/gates/{label}", tags=["gates"], **answers(responses.GateBody))
    def get_gate(model: ModelName, label: LabelName) -> Any:
        """Return the gate of a label."""
        return operations.gate(model, label)

    @router.put("/{model}/gates/{label}", tags=["gates"], **answers(responses.GateBody))
    def set_gate(model: ModelName, label: LabelName, body: GateRules, request: Request) -> Any:
        """Set the gate of a label."""
        return operations.set_gate(model, label, body.rules, actor_of(request))

    @router.get("/{model}/gates/{label}/report", tags=["gates"], **answers(responses.GateReportBody))
    def check_gate(
        model: ModelName,
        label: LabelName,
        version: Annotated[int, Query(description="The version's number.")],
    ) -> Any:
        """Return what the gate says about a version; nothing moves."""
        return operations.check_gate(model, version, label)
