"""Builds the application of the gateway's HTTP port: predictions and control plane behind one dispatcher."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, cast

import httpx
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import appliance
from appliance.api.access import access_check
from appliance.api.docs_page import add_docs_page
from appliance.api.errors import STATUS, Problem, problem_of
from appliance.api.jobs import describe_validation, jobs_router
from appliance.api.limits import BodyLimit
from appliance.api.models import plain
from appliance.api.operations import RegistryOperations
from appliance.api.upkeep import upkeep_router
from appliance.api.versions import versions_router
from appliance.api.webhooks import webhooks_router
from appliance.trainer.jobs import JobStore

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
TAGS = [
    {"name": "models", "description": "Names under which versions are registered."},
    {"name": "versions", "description": "SavedModels with their facts. Once ready a version never changes."},
    {
        "name": "labels",
        "description": "Movable names for versions, such as `production`; a move is undone by one call.",
    },
    {"name": "history", "description": "What changed, when, by whom and why. Nothing in it ever changes."},
    {"name": "gates", "description": "What a version must meet before a label moves to it."},
    {
        "name": "webhooks",
        "description": "Who is told of changes, by signed requests.",
    },
    {"name": "upkeep", "description": "The files of versions: are they as published, which are kept."},
    {"name": "jobs", "description": "Training: submit, watch, cancel."},
    {"name": "appliance", "description": "The appliance itself."},
]
_CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}


def build_app(
    operations: RegistryOperations, jobs: JobStore, *, jobs_root: Path, token: str, predictions: ASGIApp
) -> ASGIApp:
    """Return the application of one gateway.

    Args:
        operations: on the registry.
        jobs: the queue.
        jobs_root: where the folders of jobs are.
        token: the bearer token of the control plane; empty: none.
        predictions: answers every path that is not of the control plane; checks tokens itself.
    """
    control = BodyLimit(control_plane(operations, jobs, jobs_root, token))
    # The history says where a nameless caller is, also in front of a proxy. uvicorn would put this around the
    # predictions too, which do not ask, and whose short ways it could not reach then.
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    named: Any = ProxyHeadersMiddleware(cast(Any, control), trusted_hosts=trusted)
    return Dispatcher(named, predictions)


async def prepare(app: ASGIApp) -> None:
    """Have built now what FastAPI and its threads build at the first request.

    That takes up to 100 ms, in which nothing else is answered, predictions neither; and the first request may
    be the rollback of a model that misbehaves.
    """
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://appliance") as client:
        await client.get(f"{PREFIX}/health")
        await client.get(f"{PREFIX}/of/no/route")  # All routes are looked at, to find none.


class Dispatcher:
    """Sends a request to the control plane or to predictions by its path.

    Predictions are the hot path: they pass neither FastAPI's routing nor its middleware.
    """

    def __init__(self, control: ASGIApp, predictions: ASGIApp) -> None:
        """Take both applications; lifespan messages go to `control`."""
        self._control, self._predictions = control, predictions
        self.answer = getattr(predictions, "answer", None)
        self.answer_at_once = getattr(predictions, "answer_at_once", None)
        """The short ways to predictions, if they have some; see `serving.model_server.rest_protocol`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and not scope["path"].startswith("/api/"):
            await self._predictions(scope, receive, send)
        else:
            await self._control(scope, receive, send)


def control_plane(operations: RegistryOperations, jobs: JobStore, jobs_root: Path, token: str) -> FastAPI:
    """Return the control plane alone."""
    app = FastAPI(
        title="Estimator Appliance",
        version=appliance.__version__,
        description="Jobs and the registry of models. Predictions are at /v1/models.",
        openapi_tags=TAGS,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(_health_router(jobs), prefix=PREFIX)
    guarded = [Depends(access_check(token))]
    app.include_router(jobs_router(jobs, jobs_root), tags=["jobs"], prefix=PREFIX, dependencies=guarded)
    app.include_router(versions_router(operations), prefix=PREFIX, dependencies=guarded)
    app.include_router(upkeep_router(operations), prefix=PREFIX, dependencies=guarded)
    app.include_router(webhooks_router(operations), prefix=PREFIX, dependencies=guarded)
    app.include_router(_serving_router(operations), prefix=PREFIX, dependencies=guarded)
    add_docs_page(app, f"{PREFIX}/docs")
    for kind in STATUS:
        app.add_exception_handler(kind, _on_known)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_unknown)
    return app


def _health_router(jobs: JobStore) -> APIRouter:
    router = APIRouter()

    @router.get("/health", tags=["appliance"])
    def health() -> Any:
        """Say that the gateway reaches the database, and how many workers live. Asks for no token."""
        return {"status": "ok", "workers": len(jobs.workers())}

    return router


def _serving_router(operations: RegistryOperations) -> APIRouter:
    router = APIRouter()
    store = operations.store

    @router.get("/serving", tags=["appliance"])
    def serving() -> Any:
        """Return what is wanted of serving, and the newest word of each gateway."""
        reports = [
            {**vars(report), "states": {model: vars(state) for model, state in report.states.items()}}
            for report in store.serving_reports()
        ]
        targets = [vars(target) for target in store.serving_targets()]
        return plain({"revision": store.revision(), "targets": targets, "reports": reports})

    return router


def _answer(problem: Problem, headers: Any = None) -> JSONResponse:
    return JSONResponse(problem.to_json(), problem.status, headers=headers)


async def _on_known(request: Request, error: Exception) -> JSONResponse:
    problem = problem_of(error)
    if problem.status >= 500:
        log.error("request_failed", extra={"path": request.url.path, "code": problem.code}, exc_info=error)
    return _answer(problem)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code in (404, 405) and message in ("Not Found", "Method Not Allowed"):
        message = f"There is no {request.method} {request.url.path}; {PREFIX}/docs lists what there is."
    code = _CODES.get(error.status_code, "invalid_request")
    return _answer(Problem(error.status_code, code, message), error.headers)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    message = "Cannot take the request: " + describe_validation(error)
    sent = request.headers.get("content-type", "")
    if request.method != "GET" and "json" not in sent:
        # What curl says of a body unless told otherwise; FastAPI leaves such a body unread.
        message += f" Send the body with 'Content-Type: application/json'; it came with {sent!r}."
    return _answer(Problem(422, "invalid_request", message))


async def _on_unknown(request: Request, error: Exception) -> JSONResponse:
    # Starlette raises the error again after this answer, so the server's log has the traceback.
    return _answer(Problem(500, "internal", "The server failed; its log says more. The request was fine."))
