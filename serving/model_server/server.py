"""The process: models, a gRPC server and a REST server in one event loop, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import uvicorn

from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.errors import FailedPrecondition, InvalidInput, ServingError
from serving.manager import ModelConfig, ModelManager
from serving.model_server import config, start
from serving.model_server.flags import Flags
from serving.model_server.grpc_service import add_services
from serving.model_server.rest import RESTApp
from serving.model_server.start import StartFailed

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""How long SIGTERM waits for requests in flight."""
GRACE_SECONDS = 5.0
"""How long after that the models have to close."""
_GRPC_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class _RESTServer:
    server: uvicorn.Server
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.task


def manager_from(flags: Flags) -> ModelManager:
    """Return an empty manager with the flags' settings."""
    return ModelManager(
        poll_wait_seconds=flags.file_system_poll_wait_seconds,
        max_load_retries=flags.max_num_load_retries,
        load_retry_seconds=flags.load_retry_interval_micros / 1e6,
        enable_warmup=flags.enable_model_warmup,
        tags=tuple(tag for tag in flags.saved_model_tags.split(",") if tag),
        labels_for_unavailable=flags.allow_version_labels_for_unavailable_models,
    )


def configs_from(flags: Flags) -> list[ModelConfig]:
    """Return the models that the flags name.

    Raises:
        StartFailed: the config file cannot be used.
    """
    if not flags.model_config_file:
        return [ModelConfig(flags.model_name, flags.model_base_path)]
    try:
        return config.read_file(flags.model_config_file)
    except (InvalidInput, FailedPrecondition, OSError) as error:
        raise StartFailed(f"Cannot use --model_config_file: {error}") from error


async def serve(flags: Flags) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    Raises:
        StartFailed: a port is taken, or no model is configured.
        FlagError: neither a gRPC nor a REST address.
    """
    start.check(flags)
    configs = configs_from(flags)
    manager = manager_from(flags)
    try:
        _apply(manager, configs)
        await _serve(flags, manager)
    finally:
        await asyncio.to_thread(manager.close)


def _apply(manager: ModelManager, configs: list[ModelConfig]) -> None:
    try:
        manager.apply(configs)
    except ServingError as error:
        raise StartFailed(f"Failed to start server. Error: {error}") from error


async def _serve(flags: Flags, manager: ModelManager) -> None:
    dataplane = DataPlane(manager, check_method_names=flags.enable_signature_method_name_check)
    dispatcher = Dispatcher(flags.rest_api_num_threads or None)
    stopping = asyncio.Event()
    _on_signals(stopping)
    grpc_server = await _start_grpc(flags, dataplane, dispatcher)
    try:
        rest_server = await _start_rest(flags, dataplane, dispatcher)
        log.info("listening", extra={"port": flags.port, "rest_api_port": flags.rest_api_port})
        watching = asyncio.create_task(_watch(flags, manager, stopping))
        await stopping.wait()
        log.info("draining", extra={"seconds": DRAIN_SECONDS})
        _end_after(DRAIN_SECONDS + GRACE_SECONDS)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        if rest_server is not None:
            await rest_server.stop()
    finally:
        if grpc_server is not None:
            await grpc_server.stop(DRAIN_SECONDS)
        dispatcher.close()


def _end_after(seconds: float) -> None:
    """End the process then, whatever still runs: a call into a model that never returns cannot be stopped."""

    def end() -> None:
        log.error("drain_cut_short", extra={"seconds": seconds})
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _on_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)


async def _start_grpc(flags: Flags, dataplane: DataPlane, dispatcher: Dispatcher) -> grpc.aio.Server | None:
    addresses = [f"{flags.host}:{flags.port}"] if flags.port else []
    if flags.grpc_socket_path:
        addresses.append(f"unix:{flags.grpc_socket_path}")
    if not addresses:
        return None
    server = grpc.aio.server(options=_GRPC_OPTIONS)
    add_services(
        server, dataplane, dispatcher=dispatcher, tensor_content=flags.enable_serialization_as_tensor_content
    )
    for address in addresses:
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartFailed(f"Cannot listen for gRPC on {address}: {error}. Is the port taken?") from error
        if not bound and address.startswith(flags.host):
            raise StartFailed(f"Cannot listen for gRPC on {address}. Is the port taken?")
    await server.start()
    return server


async def _start_rest(flags: Flags, dataplane: DataPlane, dispatcher: Dispatcher) -> _RESTServer | None:
    if not flags.rest_api_port:
        return None
    if flags.rest_api_port == flags.port:
        log.warning("rest_skipped", extra={"reason": "--rest_api_port equals --port", "port": flags.port})
        return None
    listener = start.listen(flags.host, flags.rest_api_port, "REST")
    app = RESTApp(dataplane, dispatcher=dispatcher)
    server = rest_server(app)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    return _RESTServer(server, task)


class _Uvicorn(uvicorn.Server):
    """Uvicorn that leaves the signals to this process's own handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


def rest_server(app: Any) -> uvicorn.Server:
    """Return a uvicorn server set up for short requests: its fast parser, no logging of each, no extra
    headers."""
    return _Uvicorn(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            backlog=2048,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(DRAIN_SECONDS),
        )
    )


async def _watch(flags: Flags, manager: ModelManager, stopping: asyncio.Event) -> None:
    """Read the config file again and again, if that is asked for; one that cannot be used changes nothing."""
    seconds = flags.model_config_file_poll_wait_seconds
    if not flags.model_config_file or seconds <= 0:
        return
    while not stopping.is_set():
        await asyncio.sleep(seconds)
        try:
            manager.apply(await asyncio.to_thread(config.read_file, flags.model_config_file))
        except (ServingError, OSError) as error:
            log.error("config_file_ignored", extra={"path": flags.model_config_file, "error": str(error)})
