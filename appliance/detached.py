"""The appliance in the background: started until it is healthy, stopped until nothing of it is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from appliance.settings import Settings, settings_environment
from appliance.standalone import START_SECONDS, is_healthy, where
from appliance.startup import StartError, check_folder, holder

_TICK_SECONDS = 0.1


def start(settings: Settings, tell: Callable[[str], None]) -> None:
    """Start `appliance up` in a session of its own, and return when it is healthy.

    Raises:
        StartError: it ended instead, with the reason it gave.
    """
    logs = settings.home / "logs"
    check_folder(logs, "APPLIANCE_HOME")
    path, ready_file = logs / "up.log", settings.home / "gateway.json"
    with path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance.cli", "up"],
            env={**os.environ, **settings_environment(settings)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        # The file of an appliance that runs already is not that of the one just started.
        if holder(settings.home) == process.pid and ready_file.exists():
            ready = json.loads(ready_file.read_text())
            if is_healthy(ready["url"]):
                for line in where(settings, ready, stop="Stop it with `appliance down`."):
                    tell(line)
                return
        time.sleep(_TICK_SECONDS)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait()
    lines = path.read_text(errors="replace").strip().splitlines()
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    raise StartError(reasons[-1] if reasons else f"The appliance did not start; see {path}.")


def stop(settings: Settings, tell: Callable[[str], None]) -> None:
    """Tell the appliance on the home folder to stop, and return when it has; none running is no error."""
    process = holder(settings.home)
    if process is None:
        tell(f"No appliance is running on {settings.home}.")
        return
    # A file descriptor stands for this one process, also when its number has been given to another.
    with os.fdopen(os.pidfd_open(process)) as handle:
        signal.pidfd_send_signal(handle.fileno(), signal.SIGTERM)
        tell("Stopping; a running job writes its last checkpoint.")
        select.select([handle], [], [])
    tell("Stopped.")
