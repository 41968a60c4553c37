"""A client's way to the registry without a server: the paths of the routes, led to the same operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from appliance.api import models as bodies
from appliance.api import queries
from appliance.api.operations import RegistryOperations
from appliance.client.errors import InvalidRequest

B = TypeVar("B", bound=BaseModel)


@dataclass(frozen=True)
class Asked:
    """A request, but for its path."""

    query: Mapping[str, Any]
    body: Any
    actor: str

    def read(self, kind: type[B]) -> B:
        """Return the body, or the query where there is no body, as the route would read it."""
        given = self.query if self.body is None else self.body
        try:
            return kind(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise InvalidRequest(f"Cannot take the request: {told}.", "invalid_request", 422) from error


ROUTES: dict[tuple[str, str], Callable[..., Any]] = {
    ("GET", "/models"): lambda do, asked: do.models(asked.read(queries.ModelQuery)),
    ("GET", "/models/{model}"): lambda do, asked, model: do.model(model),
    ("PATCH", "/models/{model}"): lambda do, asked, model: do.change_model(
        model, asked.read(bodies.ModelChanges), asked.actor
    ),
    ("GET", "/models/{model}/versions"): lambda do, asked, model: do.versions(
        model, asked.read(queries.VersionQuery)
    ),
    ("GET", "/models/{model}/versions/{version}"): lambda do, asked, model, version: do.version(
        model, version
    ),
    ("PATCH", "/models/{model}/versions/{version}"): lambda do, asked, model, version: do.change_version(
        model, int(version), asked.read(bodies.VersionChanges), asked.actor
    ),
    ("DELETE", "/models/{model}/versions/{version}"): lambda do, asked, model, version: do.delete_version(
        model, int(version), asked.actor
    ),
    ("GET", "/models/{model}/versions/{version}/lineage"): lambda do, asked, model, version: do.lineage(
        model, version
    ),
    ("POST", "/models/{model}/versions/{version}/approvals"): lambda do, asked, model, version: do.approve(
        model, int(version), asked.read(bodies.Approval), asked.actor
    ),
    ("GET", "/models/{model}/events"): lambda do, asked, model: do.events(
        model, asked.read(queries.EventQuery)
    ),
    ("GET", "/models/{model}/verification"): lambda do, asked, model: do.verify(
        model, asked.read(queries.VerifyQuery)
    ),
    ("GET", "/models/{model}/retention"): lambda do, asked, model: do.retention(model),
    ("PUT", "/models/{model}/retention"): lambda do, asked, model: do.set_retention(
        model, asked.read(bodies.RetentionPolicy), asked.actor
    ),
    ("POST", "/gc"): lambda do, asked: do.gc(asked.read(bodies.Collecting)),
    ("GET", "/webhooks"): lambda do, asked: do.webhooks(asked.read(queries.WebhookQuery)),
    ("POST", "/webhooks"): lambda do, asked: do.add_webhook(asked.read(bodies.NewWebhook), asked.actor),
    ("DELETE", "/webhooks/{webhook}"): lambda do, asked, webhook: do.remove_webhook(
        int(webhook), asked.actor
    ),
    ("GET", "/webhooks/{webhook}/deliveries"): lambda do, asked, webhook: do.deliveries(
        int(webhook), asked.read(queries.DeliveryQuery)
    ),
    ("POST", "/webhooks/deliveries/{delivery}/redeliver"): lambda do, asked, delivery: do.redeliver(
        int(delivery)
    ),
    ("GET", "/models/{model}/history"): lambda do, asked, model: do.history(
        model, asked.read(queries.HistoryQuery)
    ),
    ("GET", "/models/{model}/labels"): lambda do, asked, model: {"labels": do.labels(model)},
    ("PUT", "/models/{model}/labels/{label}"): lambda do, asked, model, label: do.promote(
        model, label, asked.read(bodies.MoveLabel), asked.actor
    ),
    ("POST", "/models/{model}/labels/{label}/rollback"): lambda do, asked, model, label: do.rollback(
        model, label, asked.read(bodies.RollBack), asked.actor
    ),
    ("POST", "/models/{model}/labels/{label}/remove"): lambda do, asked, model, label: do.remove_label(
        model, label, asked.read(bodies.RemoveLabel), asked.actor
    ),
    ("GET", "/models/{model}/gates/{label}"): lambda do, asked, model, label: do.gate(model, label),
    ("PUT", "/models/{model}/gates/{label}"): lambda do, asked, model, label: do.set_gate(
        model, label, asked.read(bodies.GateRules).rules, asked.actor
    ),
    ("GET", "/models/{model}/gates/{label}/report"): lambda do, asked, model, label: do.check_gate(
        model, asked.query["version"], label
    ),
}
"""The routes by method and path; the same as those over HTTP, which a test compares."""


class DirectTransport:
    """Sends a client's requests to the operations on a registry. Raises the registry's own errors."""

    def __init__(self, operations: RegistryOperations, actor: str) -> None:
        """Take what the routes call, and who acts."""
        self.url = "the database"
        self._operations, self._actor = operations, actor

    def get(self, path: str, *, timeout_seconds: float | None = None, **query: Any) -> Any:
        """Return what a GET of `path` answers."""
        return self._ask("GET", path, query, None)

    def send(self, method: str, path: str, body: Any = None, *, timeout_seconds: float | None = None) -> Any:
        """Return what `method` on `path` answers."""
        return self._ask(method, path, {}, body)

    def upload(self, path: str, spec: Mapping[str, Any], bundle: bytes, *, timeout_seconds: float) -> Any:
        """Refuse: there are no uploads to a registry."""
        raise InvalidRequest(f"Cannot upload to {path} without a server. Pass --url.", "needs_server", 400)

    def close(self) -> None:
        """Do nothing: the registry belongs to the caller."""

    def _ask(self, method: str, path: str, query: Mapping[str, Any], body: Any) -> Any:
        asked_path = path.removeprefix("/api/v1")
        for (route_method, route), answer in ROUTES.items():
            match = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route), asked_path)
            if match and route_method == method:
                parts = {name: unquote(part) for name, part in match.groupdict().items()}
                return answer(self._operations, Asked(query, body, self._actor), **parts)
        raise InvalidRequest(
            f"There is no {method} {path} without a server. Pass --url.", "needs_server", 404
        )
