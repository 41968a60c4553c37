"""What is refused before TensorFlow is imported, which takes seconds: unusable flags and taken ports."""

from __future__ import annotations

import socket

from serving.model_server.flags import FlagError, Flags


class StartFailed(Exception):
    """The server cannot start; the text is one line that says why."""


def check(flags: Flags) -> None:
    """Refuse a start that cannot succeed.

    Raises:
        FlagError: nowhere to listen.
        StartFailed: nothing to serve, or a port is taken.
    """
    if not flags.port and not flags.grpc_socket_path and not flags.rest_api_port:
        raise FlagError("Neither --port, --grpc_socket_path nor --rest_api_port is given: nowhere to listen.")
    if not flags.model_config_file and not flags.model_base_path:
        raise StartFailed("Neither --model_base_path nor --model_config_file is given: nothing to serve.")
    for protocol, port in (("gRPC", flags.port), ("REST", flags.rest_api_port)):
        if port:
            listen(flags.host, port, protocol).close()


def listen(host: str, port: int, protocol: str) -> socket.socket:
    """Return a socket bound to the address, not listening yet.

    Raises:
        StartFailed: it cannot be bound.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, number)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise StartFailed(f"Cannot listen for {protocol} on {host}:{port}: {error.strerror}.") from error
    bound.setblocking(False)
    return bound
