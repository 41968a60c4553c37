"""One of several processes of a model server; its supervisor starts it as
`python -m serving.model_server.worker`.

Its orders come by standard input. It inherits one end of a channel and, if there is REST, the listening
socket that all workers share. When its supervisor is gone it drains and ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from collections.abc import Mapping
from typing import Any

import uvloop

from serving.manager import ModelManager
from serving.metrics import Metrics, Snapshot
from serving.model_server import logs, start
from serving.model_server.control import Channel, RemoteError
from serving.model_server.flags import Flags
from serving.model_server.reload import Reloader, settled
from serving.model_server.server import Alone, serve
from serving.model_server.start import StartFailed


class Worker(Alone):
    """How a worker stands: what changes its models or counts for all goes through the supervisor."""

    shares_ports = True

    _channel: Channel
    """To the supervisor; set before anything is served."""

    def __init__(self, orders: Mapping[str, Any], listener: socket.socket | None) -> None:
        super().__init__(Flags(orders["flags"]))
        self.flags = self._flags
        self._config = None if orders["config"] is None else base64.b64decode(orders["config"])
        self._replaces = orders["replaces"]
        self._listener = listener
        self._begun = asyncio.Event()
        self._open = False
        self._manager: ModelManager

    def handlers(self) -> dict[str, Any]:
        """Return what the supervisor may ask."""
        return {
            "check": self._check,
            "apply": self._apply_config,
            "settle": self._settle,
            "metrics": self._own_figures,
        }

    def connect(self, channel: Channel) -> None:
        """Take the channel to the supervisor."""
        self._channel = channel

    async def follow(self) -> None:
        """Answer the supervisor; when it is gone, stop."""
        await self._channel.run()
        self.stopping.set()

    def begin(self, manager: ModelManager, metrics: Metrics | None) -> None:
        """Give the manager its models: those of the last reload, if there was one."""
        self._manager = manager
        if self._config is None:
            super().begin(manager, metrics)
        else:
            self._metrics, self._reloader = metrics, Reloader(manager)
            # The other workers have these labels, so they are right; the versions are here when ports open.
            self._reloader.apply(self._config, labels_for_unavailable=True)
        self._begun.set()

    async def ready_to_listen(self) -> None:
        """A worker that replaces another opens when its models are there: clients must not notice."""
        if self._replaces:
            names = [entry.name for entry in self._manager.configs()]
            waiting = asyncio.create_task(settled(self._manager, names))
            stopping = asyncio.create_task(self.stopping.wait())
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            stopping.cancel()

    def listener(self) -> socket.socket:
        """Return the socket that all workers share."""
        assert self._listener is not None  # The supervisor makes one if there is REST.
        return self._listener

    async def listening(self) -> None:
        """Tell the supervisor."""
        self._open = True
        await self._channel.ask("ready")

    async def reload(self, data: bytes) -> None:
        """Have a ReloadConfigRequest applied by all workers."""
        await self._channel.ask("reload", base64.b64encode(data).decode())

    async def figures(self) -> Snapshot:
        """Return the metrics of all workers."""
        found: Snapshot = await self._channel.ask("metrics")
        return found

    async def _check(self, data: str) -> None:
        # Until it serves, its versions are not available, and say nothing of what labels may name.
        if self._open:
            self._reloader.check(base64.b64decode(data))

    async def _apply_config(self, data: str) -> None:
        await self._begun.wait()
        self._reloader.apply(base64.b64decode(data), labels_for_unavailable=not self._open)

    async def _settle(self, data: str) -> None:
        await self._begun.wait()
        await self._reloader.settle(base64.b64decode(data))

    async def _own_figures(self, _: None) -> Snapshot | None:
        return self._metrics.snapshot() if self._open and self._metrics is not None else None


async def work(orders: Mapping[str, Any]) -> None:
    """Serve as the orders say: `flags`, `config` and `replaces` are for the worker, `channel` and `listener`
    are numbers of inherited files."""
    listener = None if orders["listener"] is None else socket.socket(fileno=orders["listener"])
    worker = Worker(orders, listener)
    channel = await Channel.over(socket.socket(fileno=orders["channel"]), worker.handlers())
    worker.connect(channel)
    following = asyncio.create_task(worker.follow())
    try:
        await serve(worker.flags, worker)
    finally:
        following.cancel()


def main() -> int:
    """Run until told to stop; return the exit status."""
    logs.set_up(several_processes=True)
    orders = json.load(sys.stdin)
    try:
        uvloop.run(work(orders))
    except (StartFailed, RemoteError) as error:
        print(error, file=sys.stderr)
        return start.FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
