"""The whole appliance on one machine: the gateway and the trainer under a supervisor."""

from __future__ import annotations

import http.client
import json
import logging
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from appliance.settings import Settings, settings_environment
from appliance.startup import StartError, check_database, check_folder, check_folders, check_ports, only_one
from appliance.supervisor import CannotStart, Program, Supervisor

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
START_SECONDS = 180.0
"""How long both programs may take until they are healthy."""


def run(settings: Settings, tell: Callable[[str], None]) -> None:
    """Start the appliance, tell where everything is, and keep it running until SIGINT or SIGTERM.

    Args:
        settings: for this process and, through the environment, for both programs.
        tell: prints a line for the person who started it.

    Raises:
        StartError: it cannot start; the line says why.
    """
    check_folders(settings)
    with only_one(settings.home), stop_signals() as stop:
        check_ports(settings)
        # Both programs would find out on their own, but each in its own log.
        check_database(settings)
        ready_file = settings.home / "gateway.json"
        ready_file.unlink(missing_ok=True)
        logs = settings.home / "logs"
        check_folder(logs, "APPLIANCE_HOME")
        gateway, trainer = programs(settings, logs, ready_file)
        # A job that is to stop gets its own grace; the worker then still has to end.
        supervisor = Supervisor([gateway, trainer], grace_seconds=settings.stop_grace_seconds + 15)
        try:
            tell(f"Starting; logs are in {logs}.")
            supervisor.start()
            if healthy := wait_until_healthy(supervisor, ready_file, stop):
                # Free ports that were found stay the same when the gateway has to be started again.
                gateway.environment |= {
                    "APPLIANCE_REST_PORT": str(healthy["rest_port"]),
                    "APPLIANCE_GRPC_PORT": str(healthy["grpc_port"]),
                }
                for line in where(settings, healthy):
                    tell(line)
            while not stop.wait(TICK_SECONDS):
                supervisor.tend()
        except CannotStart as error:
            raise StartError(str(error)) from error
        finally:
            tell("Stopping; a running job writes its last checkpoint. Ctrl-C again does not wait for it.")
            supervisor.stop()
            ready_file.unlink(missing_ok=True)
    tell("Stopped.")


def programs(settings: Settings, logs: Path, ready_file: Path) -> tuple[Program, Program]:
    """Return the gateway and the trainer, with the settings as their environment."""
    environment = settings_environment(settings)
    command = [sys.executable, "-m", "appliance.cli"]
    return (
        Program(
            "gateway",
            [*command, "gateway", "--ready-file", str(ready_file)],
            logs / "gateway.log",
            environment,
        ),
        Program("trainer", [*command, "trainer"], logs / "trainer.log", dict(environment)),
    )


def wait_until_healthy(
    supervisor: Supervisor, ready_file: Path, stop: threading.Event
) -> Mapping[str, int | str] | None:
    """Return what the gateway says of its ports once both programs are healthy; None if told to stop.

    Raises:
        CannotStart: a program ended in a way that another try would not mend.
        StartError: they are not healthy within `START_SECONDS`.
    """
    deadline = time.monotonic() + START_SECONDS
    while not stop.wait(TICK_SECONDS):
        supervisor.tend()
        if ready_file.exists():
            ready = json.loads(ready_file.read_text())
            if is_healthy(ready["url"]):
                return ready
        if time.monotonic() > deadline:
            raise StartError(f"Not healthy within {START_SECONDS:g} s; see {ready_file.parent / 'logs'}.")
    return None


def is_healthy(url: str) -> bool:
    """Return whether the gateway at `url` answers, reaches its database, and knows of a living worker."""
    # urllib rather than the client: a proxy of the environment must not come between.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/v1/health", timeout=5) as answer:
            return json.load(answer)["workers"] > 0
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False  # Nobody there yet, or somebody else.


def where(
    settings: Settings, ready: Mapping[str, int | str], stop: str = "Stop it with Ctrl-C."
) -> list[str]:
    """Return the lines that tell a person where everything is, and last how to `stop` it."""
    return [
        f"The appliance is up at {ready['url']}.",
        f"  predictions  {ready['url']}/v1/models/...   gRPC {ready['grpc']}",
        f"  control      {ready['url']}/api/v1   (client and command: APPLIANCE_URL={ready['url']})",
        f"  home         {settings.home}",
        stop,
    ]


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Give an event that SIGINT, SIGTERM and SIGHUP set; a second signal is a KeyboardInterrupt."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
