"""Several worker processes behind the same ports: starts them, starts dead ones again, and passes between
them what concerns all: new configurations and metrics. It serves nothing itself and needs no TensorFlow.

REST connections are taken from one listening socket that all workers inherit; gRPC has a socket in each
worker, on the same port (SO_REUSEPORT), among which the system deals out connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from serving import metrics
from serving.metrics import Snapshot
from serving.model_server import settings, start
from serving.model_server.control import Channel, ChannelClosed
from serving.model_server.flags import Flags

log = logging.getLogger(__name__)

SHORT_LIFE_SECONDS = 10.0
"""A worker that lives shorter is started again only after a while, which doubles each time."""
LONGEST_PAUSE_SECONDS = 10.0


class _Seat:
    """The place of one worker, whichever process has it at the moment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.channel: Channel | None = None
        self.ready = False
        self.figures: Snapshot | None = None
        self.quick_deaths = 0


class Supervisor:
    """Runs the workers of one server."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._seats = [_Seat(number) for number in range(flags.workers)]
        self._config: str | None = None
        self._figures_of_the_dead: list[Snapshot] = []
        self._reloading = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT, then let all workers drain; return the exit status.

        Raises:
            StartFailed: a port is taken.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with contextlib.ExitStack() as sockets:
            listener = self._listener(sockets)
            keeping = [asyncio.create_task(self._keep(seat, listener)) for seat in self._seats]
            await self._stopping.wait()
            for seat in self._seats:
                if seat.process is not None and seat.process.returncode is None:
                    seat.process.terminate()
            await asyncio.gather(*keeping)
        return self._status

    def _listener(self, sockets: contextlib.ExitStack) -> socket.socket | None:
        """Return the socket of REST, and hold the port of gRPC, so that nobody else takes it between two
        workers."""
        flags = self._flags
        if flags.port:
            sockets.enter_context(start.listen(flags.host, flags.port, "gRPC", shared=True))
        if not flags.rest_api_port or flags.rest_api_port == flags.port:
            return None
        return sockets.enter_context(start.listen(flags.host, flags.rest_api_port, "REST"))

    async def _keep(self, seat: _Seat, listener: socket.socket | None) -> None:
        """Have a worker in this seat until the end."""
        replaces = False
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._one_life(seat, listener, replaces=replaces)
            if self._stopping.is_set():
                self._status = self._status or abs(status)
                return
            if status == start.FAILED and not seat.ready and not replaces:
                # What cannot start once will not start the next time; it has said why.
                self._status = status
                self._stopping.set()
                return
            replaces = True
            short = time.monotonic() - began < SHORT_LIFE_SECONDS
            seat.quick_deaths = seat.quick_deaths + 1 if short else 0
            pause = min(0.1 * 2**seat.quick_deaths, LONGEST_PAUSE_SECONDS) if seat.quick_deaths > 1 else 0.0
            log.error("worker_died", extra={"worker": seat.number, "status": status, "pause_seconds": pause})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _one_life(self, seat: _Seat, listener: socket.socket | None, *, replaces: bool) -> int:
        ours, theirs = socket.socketpair()
        inherited = [theirs.fileno(), *([] if listener is None else [listener.fileno()])]
        orders = {
            "flags": self._flags.values,
            "config": self._config,
            "replaces": replaces,
            "channel": theirs.fileno(),
            "listener": None if listener is None else listener.fileno(),
        }
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "serving.model_server.worker",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=inherited,
                env={**os.environ, **settings.environment(self._flags)},
            )
        seat.process, seat.ready = process, False
        handlers = {"ready": self._ready_for(seat), "reload": self._reload, "metrics": self._figures}
        seat.channel = await Channel.over(ours, handlers)
        answering = asyncio.create_task(seat.channel.run())
        await self._give(process, orders)
        if self._stopping.is_set():
            process.terminate()
        status = await process.wait()
        await answering
        if seat.figures is not None:
            # What it has counted stays counted, or sums would fall.
            self._figures_of_the_dead = [metrics.added([*self._figures_of_the_dead, seat.figures])]
            seat.figures = None
        return status

    @staticmethod
    async def _give(process: asyncio.subprocess.Process, orders: Mapping[str, Any]) -> None:
        assert process.stdin is not None  # It is a pipe.
        process.stdin.write(json.dumps(orders).encode())
        with contextlib.suppress(ConnectionError):  # It may be dead already; `wait` tells.
            await process.stdin.drain()
        process.stdin.close()

    def _ready_for(self, seat: _Seat) -> Any:
        async def ready(_: None) -> None:
            seat.ready = True
            process = seat.process.pid if seat.process else None
            log.info("worker_ready", extra={"worker": seat.number, "pid": process})

        return ready

    async def _reload(self, data: str) -> None:
        """Have every worker check a configuration; when none refuses it, apply it in all and wait for it."""
        async with self._reloading:
            await self._ask_all("check", data)
            self._config = data
            await self._ask_all("apply", data)
        await self._ask_all("settle", data)

    async def _figures(self, _: None) -> Snapshot:
        """Return the metrics of all workers that ever were."""
        await asyncio.gather(*map(self._ask_figures, self._seats))
        living = [seat.figures for seat in self._seats if seat.figures is not None]
        return metrics.added([*self._figures_of_the_dead, *living])

    async def _ask_figures(self, seat: _Seat) -> None:
        if seat.channel is not None:
            with contextlib.suppress(ChannelClosed):
                seat.figures = await seat.channel.ask("metrics")

    async def _ask_all(self, kind: str, value: str) -> None:
        """Ask every worker. One that dies meanwhile refuses nothing: its successor gets the configuration."""
        channels = [seat.channel for seat in self._seats if seat.channel is not None]
        answers = await asyncio.gather(
            *(channel.ask(kind, value) for channel in channels), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ChannelClosed):
                raise answer
