"""Webhooks over HTTP: who is told of what, and what became of each delivery."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from appliance.api import responses
from appliance.api.access import actor_of
from appliance.api.models import NewWebhook
from appliance.api.operations import RegistryOperations
from appliance.api.queries import DeliveryQuery, WebhookQuery
from appliance.api.versions import answers

WebhookId = Annotated[int, Path(description="The webhook's id.")]


def webhooks_router(operations: RegistryOperations) -> APIRouter:
    """Return the routes of webhooks."""
    router = APIRouter(prefix="/webhooks", tags=["webhooks"])

    @router.get("", **answers(responses.WebhooksBody))
    def list_webhooks(query: Annotated[WebhookQuery, Query()]) -> Any:
        """Return the webhooks, oldest first, without their secrets."""
        return operations.webhooks(query)

    @router.post("", status_code=201, **answers(responses.WebhookBody, success=201))
    def add_webhook(body: NewWebhook, request: Request) -> Any:
        """Tell a receiver of events from now on; the answer has the secret, which is never told again."""
        return operations.add_webhook(body, actor_of(request))

    @router.delete("/{webhook}", status_code=204)
    def remove_webhook(webhook: WebhookId, request: Request) -> Response:
        """Tell a receiver no more, not even of what it has not been told yet."""
        operations.remove_webhook(webhook, actor_of(request))
        return Response(status_code=204)

    @router.get("/{webhook}/deliveries", **answers(responses.DeliveriesBody))
    def deliveries(webhook: WebhookId, query: Annotated[DeliveryQuery, Query()]) -> Any:
        """Return what a receiver was told or is still to be told, newest first."""
        return operations.deliveries(webhook, query)

    @router.post("/deliveries/{delivery}/redeliver", **answers(responses.DeliveryBody))
    def redeliver(delivery: Annotated[int, Path(description="The delivery's id.")]) -> Any:
        """Tell a receiver once more."""
        return operations.redeliver(delivery)

    return router
