"""Real processes for the tests: started, waited for by a condition, and gone at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests import waiting

WAIT_SECONDS = 120.0


class Process:
    """A process with its output in a file."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.output_file = folder / f"{name}.out"
        with self.output_file.open("wb") as output:
            self.popen = subprocess.Popen(
                list(command),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has printed."""
        return self.output_file.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """Return the process and all its descendants that live."""
        me = psutil.Process(self.popen.pid)
        return [me, *me.children(recursive=True)]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(timeout=WAIT_SECONDS)


@contextmanager
def running(
    name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator[Process]:
    """Run a process; whatever is left of it at the end is killed."""
    process = Process(name, command, environment, folder)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            family = process.family()
            process.popen.terminate()
            _, left = psutil.wait_procs(family, timeout=WAIT_SECONDS)
            for survivor in left:
                survivor.kill()
        process.popen.wait()


def wait_until(condition: Callable[[], bool], what: str, *processes: Process) -> None:
    """Wait until a condition holds, while all of `processes` live."""

    def holds() -> bool:
        if condition():
            return True
        for process in processes:
            assert process.popen.poll() is None, f"{process.name} has ended:\n{process.output}"
        return False

    def describe() -> str:
        said = "\n".join(f"--- {process.name}\n{process.output[-5000:]}" for process in processes)
        return f"{what}\n{said}"

    waiting.wait_until(holds, describe, WAIT_SECONDS)


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked about yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
