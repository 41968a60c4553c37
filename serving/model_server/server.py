"""The process: models, a gRPC server and a REST server in one event loop, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading

from serving import heap
from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.errors import InvalidInput, ServingError
from serving.loading import LoadOptions
from serving.manager import ModelManager
from serving.metrics import Metrics, Snapshot
from serving.model_server import config, listeners, settings, start
from serving.model_server.flags import Flags
from serving.model_server.listeners import DRAIN_SECONDS, Standing
from serving.model_server.reload import Reloader
from serving.model_server.start import StartFailed

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long after that the models have to close."""


def manager_from(flags: Flags) -> ModelManager:
    """Return an empty manager with the flags' settings.

    Raises:
        StartFailed: a file that the flags name cannot be used.
    """
    try:
        loading = LoadOptions(
            tags=tuple(tag for tag in flags.saved_model_tags.split(",") if tag),
            session_config=settings.session_config(flags),
            enable_warmup=flags.enable_model_warmup,
            warmup_iterations=max(flags.num_request_iterations_for_warmup, 1),
            batching=settings.batching(flags),
            batching_for=settings.batching_of_model if flags.enable_per_model_batching_parameters else None,
            threads=flags.num_load_threads,
        )
    except (InvalidInput, OSError) as error:
        raise StartFailed(f"Cannot use --tensorflow_session_config_file: {error}") from error
    heap.keep_freed()
    return ModelManager(
        poll_wait_seconds=flags.file_system_poll_wait_seconds,
        max_load_retries=flags.max_num_load_retries,
        load_retry_seconds=flags.load_retry_interval_micros / 1e6,
        loading=loading,
        labels_for_unavailable=flags.allow_version_labels_for_unavailable_models,
    )


class Alone:
    """How a server in one process stands: it opens its own ports and answers for itself."""

    shares_ports = False

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self.stopping = asyncio.Event()
        """Set when the server should drain and end."""

    def begin(self, manager: ModelManager, metrics: Metrics | None) -> None:
        """Give the manager its models.

        Raises:
            StartFailed: they are refused.
        """
        self._metrics = metrics
        self._reloader = Reloader(manager)
        try:
            manager.apply(start.model_configs(self._flags))
        except (ServingError, OSError) as error:
            raise StartFailed(f"Failed to start server. Error: {error}") from error

    async def ready_to_listen(self) -> None:
        """Return when ports should be opened: at once, as clients may want to see how models load."""

    def listener(self) -> socket.socket:
        """Return the socket for REST, bound."""
        return start.listen(self._flags.host, self._flags.rest_api_port, "REST")

    async def listening(self) -> None:
        """Do what is to be done once all ports are open."""

    async def reload(self, data: bytes) -> None:
        """Apply a ReloadConfigRequest."""
        await self._reloader.reload(data)

    async def figures(self) -> Snapshot:
        """Return the metrics."""
        assert self._metrics is not None  # Otherwise there is no page of them.
        return self._metrics.snapshot()


async def serve(flags: Flags, standing: Standing | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    `standing`: how this process stands to others; by default it is alone.

    Raises:
        StartFailed: a port is taken, or no model is configured.
        FlagError: neither a gRPC nor a REST address.
    """
    if standing is None:
        start.check(flags)
        standing = Alone(flags)
    manager = manager_from(flags)
    try:
        await _serve(flags, manager, standing)
    finally:
        await asyncio.to_thread(manager.close)


async def _serve(flags: Flags, manager: ModelManager, standing: Standing) -> None:
    dataplane = DataPlane(manager, check_method_names=flags.enable_signature_method_name_check)
    batching = settings.batching(flags)
    metrics = Metrics() if settings.metrics_path(flags) else None
    rest_threads = Dispatcher.suited_to(batching, flags.rest_api_num_threads or None)
    grpc_threads = Dispatcher.suited_to(batching, flags.grpc_max_threads or None)
    stopping = standing.stopping
    _on_signals(stopping)
    standing.begin(manager, metrics)
    await standing.ready_to_listen()
    grpc_server = await listeners.start_grpc(flags, dataplane, grpc_threads, metrics, standing)
    try:
        rest_server = await listeners.start_rest(flags, dataplane, rest_threads, metrics, standing)
        await standing.listening()
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
        rest_threads.close()
        grpc_threads.close()


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
