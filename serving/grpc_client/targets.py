"""Where a server is, as gRPC writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit


class Target:
    """The address of a server.

    Args:
        text: `host:port`, with an IPv6 address in brackets, or `unix:PATH`; `dns:` may stand before it.

    Raises:
        ValueError: it is none of these.
    """

    def __init__(self, text: str) -> None:
        self._path = ""
        self.authority = "localhost"
        """What requests name as the server."""
        if text.startswith("unix:"):
            self._path = text.removeprefix("unix:")
            self._path = self._path.removeprefix("//") if self._path.startswith("///") else self._path
            return
        self.authority = text.removeprefix("dns:///").removeprefix("dns:")
        try:
            parts = urlsplit(f"//{self.authority}")
            port = parts.port
        except ValueError as error:
            raise ValueError(_complaint(text)) from error
        if not parts.hostname or not port or parts.netloc != self.authority or "@" in self.authority:
            raise ValueError(_complaint(text))
        self._host, self._port = parts.hostname, port

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> tuple[Any, Any]:
        """Connect; return transport and protocol.

        Raises:
            OSError: that is not possible.
        """
        loop = asyncio.get_running_loop()
        if self._path:
            return await loop.create_unix_connection(factory, self._path)
        return await loop.create_connection(factory, self._host, self._port)


def _complaint(text: str) -> str:
    return f"Cannot call gRPC at {text!r}; give an address like 127.0.0.1:8500."
