"""Sockets to listen on."""

from __future__ import annotations

import errno
import socket
from typing import Any


def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Return a socket for each address of a host, bound and not listening yet: localhost may have two.

    `port` 0: the system chooses, one for all. `shared`: others may listen there that say the same.

    Raises:
        OSError: none can be bound, or one is taken.
    """
    found: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for info in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            chosen = port or (found[0].getsockname()[1] if found else 0)
            try:
                found.append(bound(info, chosen, shared=shared))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error  # As of ::1 on a machine without IPv6.
        if not found and absent is not None:
            raise absent
    except OSError:
        for each in found:
            each.close()
        raise
    return found


def bound(info: tuple[Any, ...], port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket for one result of getaddrinfo, bound and not listening yet.

    Raises:
        OSError: it cannot be bound.
    """
    family, kind, protocol, _, address = info
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address[0], port, *address[2:]))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
