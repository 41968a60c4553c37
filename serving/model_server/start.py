"""What is refused before TensorFlow is imported, which takes seconds: unusable flags and taken ports."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from serving.errors import FailedPrecondition, InvalidInput
from serving.grpc_transport.sockets import bind, bound
from serving.model_server import config, settings
from serving.model_server.flags import FlagError, Flags
from serving.policy import ModelConfig

FAILED = 1
"""The exit status of a process that cannot start."""


class StartFailed(Exception):
    """The server cannot start; the text is one line that says why."""


def check(flags: Flags) -> None:
    """Refuse a start that cannot succeed.

    Raises:
        FlagError: nowhere to listen, or flags that exclude one another.
        StartFailed: nothing to serve, a file that cannot be used, or a port is taken.
    """
    if not flags.port and not flags.grpc_socket_path and not flags.rest_api_port:
        raise FlagError("Neither --port, --grpc_socket_path nor --rest_api_port is given: nowhere to listen.")
    if not flags.model_config_file and not flags.model_base_path:
        raise StartFailed("Neither --model_base_path nor --model_config_file is given: nothing to serve.")
    _check_together(flags)
    _check_workers(flags)
    _check_files(flags)
    for protocol, port in (("gRPC", flags.port), ("REST", flags.rest_api_port)):
        if port:
            listen(flags.host, port, protocol).close()


def _check_together(flags: Flags) -> None:
    if flags.batching_parameters_file and not flags.enable_batching:
        raise FlagError("--batching_parameters_file is given without --enable_batching.")
    if flags.enable_per_model_batching_parameters and not flags.enable_batching:
        raise FlagError("--enable_per_model_batching_parameters is given without --enable_batching.")
    if flags.use_alts_credentials and flags.ssl_config_file:
        raise FlagError("--use_alts_credentials and --ssl_config_file exclude one another.")
    if flags.mixed_precision not in ("", "bfloat16"):
        raise FlagError(f"--mixed_precision takes bfloat16; got '{flags.mixed_precision}'.")
    if not 0 <= flags.per_process_gpu_memory_fraction <= 1:
        raise FlagError(
            "--per_process_gpu_memory_fraction takes a number from 0 to 1; "
            f"got {flags.per_process_gpu_memory_fraction}."
        )


def _check_workers(flags: Flags) -> None:
    if flags.workers < 1:
        raise FlagError(f"--workers takes a number from 1; got {flags.workers}.")
    if flags.workers > 1 and flags.grpc_socket_path:
        raise FlagError("--grpc_socket_path goes with one worker only: processes cannot share such a socket.")


def model_configs(flags: Flags) -> list[ModelConfig]:
    """Return the models that the flags name.

    Raises:
        InvalidInput, FailedPrecondition, OSError: the config file cannot be used.
    """
    if not flags.model_config_file:
        return [ModelConfig(flags.model_name, flags.model_base_path)]
    return config.read_file(flags.model_config_file)


def _check_files(flags: Flags) -> None:
    readers: dict[str, Callable[[Flags], Any]] = {
        "model_config_file": model_configs,
        "batching_parameters_file": settings.batching,
        "monitoring_config_file": settings.metrics_path,
        "ssl_config_file": lambda flags: (settings.grpc_credentials(flags), settings.grpc_ssl(flags)),
        "rest_api_ssl_config_file": settings.rest_ssl,
        "grpc_channel_arguments": settings.grpc_options,
    }
    for name, read in readers.items():
        try:
            read(flags)
        except (InvalidInput, FailedPrecondition, OSError) as error:
            raise StartFailed(f"Cannot use --{name}: {error}") from error


def listen(host: str, port: int, protocol: str, *, shared: bool = False) -> socket.socket:
    """Return a socket bound to the address, not listening yet.

    `shared`: others may listen there that say the same.

    Raises:
        StartFailed: it cannot be bound.
    """
    try:
        return bound(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0], port, shared=shared)
    except OSError as error:
        raise _cannot_listen(protocol, host, port, error) from error


def listen_all(host: str, port: int, protocol: str, *, shared: bool = False) -> list[socket.socket]:
    """Return a socket as of `listen` for each address of the host.

    Raises:
        StartFailed: none can be bound, or one is taken.
    """
    try:
        return bind(host, port, shared=shared)
    except OSError as error:
        raise _cannot_listen(protocol, host, port, error) from error


def _cannot_listen(protocol: str, host: str, port: int, error: OSError) -> StartFailed:
    return StartFailed(f"Cannot listen for {protocol} on {host}:{port}: {error.strerror}. Is the port taken?")
