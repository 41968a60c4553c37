"""The gateway's process: control plane and predictions on the HTTP port, gRPC beside it, one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import registry
from appliance.api.app import build_app, prepare
from appliance.api.listening import Server, describe_places, http_config
from appliance.api.operations import RegistryOperations
from appliance.settings import Settings
from appliance.startup import StartError, bind
from appliance.trainer.jobs import JobStore
from registry.webhooks import WebhookDispatcher
from serving import smoke
from serving.gateway import EmbeddedRuntime, Gateway, PortUnavailable, SidecarRuntime
from serving.grpc_client.targets import Target

GRACE_SECONDS = 10
"""How long requests in flight may take to end when the process is to stop."""


def serve(settings: Settings, ready_file: Path | None = None) -> None:
    """Run the gateway until SIGINT or SIGTERM.

    Args:
        settings: of the process.
        ready_file: where to write, as JSON, the ports and addresses once the process listens.

    Raises:
        StartError: a port is taken.
        registry.errors.DatabaseError: the database cannot be used.
    """
    http = bind(settings.host, settings.rest_port, "APPLIANCE_REST_PORT")
    with http, registry.Registry(settings.database_url, settings.artifact_root, migrate=False) as store:
        jobs = JobStore(settings.database_url, migrate=False)
        try:
            uvicorn_loop()(_serve(settings, store, jobs, http, ready_file))
        finally:
            jobs.close()


def uvicorn_loop() -> Callable[..., None]:
    """Return what runs a coroutine: uvloop's event loop where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run
    return uvloop.run


def make_runtime(settings: Settings) -> EmbeddedRuntime | SidecarRuntime:
    """Return what runs the models, as the settings say.

    Raises:
        StartError: the sidecar's address is none, or the file with the batching parameters cannot be used.
    """
    if settings.runtime == "sidecar":
        try:
            Target(settings.sidecar_grpc)
        except ValueError as error:
            raise StartError(f"{error} Set APPLIANCE_SIDECAR_GRPC.") from error
        return SidecarRuntime(
            settings.sidecar_grpc,
            settings.sidecar_rest,
            artifact_root=settings.artifact_root,
            model_root=settings.sidecar_model_root,
        )
    from serving.errors import InvalidInput
    from serving.loading import LoadOptions
    from serving.manager import ModelManager
    from serving.model_server.text_protos import batching_parameters

    file = settings.batching_parameters_file
    try:
        loading = LoadOptions(batching=None if file is None else batching_parameters(file))
    except (OSError, InvalidInput) as error:
        raise StartError(f"Cannot batch: {error}. Set APPLIANCE_BATCHING_PARAMETERS_FILE.") from error
    # Somebody waits for a promotion: a version that will not load has to be told within seconds, not minutes.
    return EmbeddedRuntime(ModelManager(max_load_retries=1, load_retry_seconds=1.0, loading=loading))


async def _serve(
    settings: Settings, store: registry.Registry, jobs: JobStore, http: socket.socket, ready_file: Path | None
) -> None:
    gateway = Gateway(
        store,
        make_runtime(settings),
        token=settings.token,
        poll_wait_seconds=settings.poll_wait_seconds,
    )
    await gateway.start()
    webhooks = WebhookDispatcher(store, allow_private=settings.webhook_private_addresses)
    webhooks.start()
    try:
        try:
            grpc_port = await gateway.serve_grpc(settings.host, settings.grpc_port)
        except PortUnavailable as error:
            raise StartError(str(error)) from error
        app = build_app(
            RegistryOperations(store, on_move=gateway.wake, jobs=jobs, predictor=smoke.predict),
            jobs,
            jobs_root=settings.jobs_root,
            token=settings.token,
            predictions=gateway.asgi,
        )
        await prepare(app)
        config = http_config(app, timeout_graceful_shutdown=GRACE_SECONDS)
        places = describe_places(settings.host, http.getsockname()[1], grpc_port)
        await Server(config, places, ready_file).serve(sockets=[http])
    finally:
        await asyncio.to_thread(webhooks.stop)
        await gateway.stop()
