"""The process: models, a gRPC server and a REST server in one event loop, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading

from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.errors import FailedPrecondition, InvalidInput, ServingError
from serving.loading import LoadOptions
from serving.manager import ModelConfig, ModelManager
from serving.metrics import Metrics
from serving.model_server import config, listeners, settings, start
from serving.model_server.flags import Flags
from serving.model_server.listeners import DRAIN_SECONDS
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
    return ModelManager(
        poll_wait_seconds=flags.file_system_poll_wait_seconds,
        max_load_retries=flags.max_num_load_retries,
        load_retry_seconds=flags.load_retry_interval_micros / 1e6,
        loading=loading,
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
    batching = settings.batching(flags)
    metrics = Metrics() if settings.metrics_path(flags) else None
    rest_threads = Dispatcher.suited_to(batching, flags.rest_api_num_threads or None)
    grpc_threads = Dispatcher.suited_to(batching, flags.grpc_max_threads or None)
    stopping = asyncio.Event()
    _on_signals(stopping)
    grpc_server = await listeners.start_grpc(flags, dataplane, grpc_threads, metrics)
    try:
        rest_server = await listeners.start_rest(flags, dataplane, rest_threads, metrics)
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
