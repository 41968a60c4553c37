"""The `appliance trainer` command: a worker that ends in good order on SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import threading

from appliance.settings import Settings
from appliance.trainer.worker import Worker

__all__ = ["main"]


def main(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT; a running job then goes back into the queue at a checkpoint.

    To be called from the main thread, with logging set up.

    Raises:
        registry.errors.DatabaseError: the database cannot be used at the start.
        OSError: `jobs_root` cannot be made.
    """
    stop = threading.Event()
    settings.jobs_root.mkdir(parents=True, exist_ok=True)
    worker = Worker(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    worker.run(stop)
