"""Tasks as processes on the worker's machine, each in a process group of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

from appliance.trainer.launchers import Output
from appliance.trainer.task_spec import TaskSpec

__all__ = ["LocalLauncher", "LocalTask"]

LAST_WORDS_SECONDS = 5.0
"""How long pipes are read after the task has ended, in case something that left its group holds them open."""
LONGEST_LINE_BYTES = 1 << 16
"""What is printed without a line end is cut into lines of about this length."""
_READ_BYTES = 1 << 16


class LocalLauncher:
    """Starts `python -m appliance.trainer.task`.

    The process asks the kernel to be killed when the *thread* that started it ends (PR_SET_PDEATHSIG), so
    `launch` is to be called from a thread that lives as long as the worker.
    """

    def launch(self, task: TaskSpec) -> LocalTask:
        """Start a task. It dies with this process, and with the thread that called.

        Raises:
            OSError: the process cannot be started.
        """
        read_end, write_end = os.pipe()
        try:
            # -P: the working directory is not searched for modules, for the job's folder holds one called
            # `code`, like a module of the standard library.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "appliance.trainer.task", str(write_end), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[write_end],
                start_new_session=True,
                cwd=task.folder,
                env=_environment(),
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        # A task that has died already shows it by its exit code.
        with contextlib.suppress(BrokenPipeError), _pipe(process.stdin) as stdin:
            stdin.write(task.to_json().encode())
        return LocalTask(process, read_end)


class LocalTask:
    """A process of a job on this machine. For use by one thread."""

    def __init__(self, process: subprocess.Popen[bytes], messages: int) -> None:
        self._process = process
        self._stdout = _pipe(process.stdout)
        self._printed = _Lines(self._stdout.fileno(), LONGEST_LINE_BYTES)
        self._messages = _Lines(messages)
        self._selector = selectors.DefaultSelector()
        for pipe in (self._printed, self._messages):
            self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)

    @property
    def pid(self) -> int:
        """The process, and its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the number of the signal that killed it."""
        return self._process.poll()

    def read(self, timeout_seconds: float) -> Output:
        """Return what was said, after waiting up to `timeout_seconds` for something to be said."""
        if not self._selector.get_map():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_seconds)
        for key, _ in self._selector.select(timeout_seconds):
            if not key.data.read():
                self._selector.unregister(key.fd)
        return self._output()

    def stop(self) -> None:
        """Ask it to write a checkpoint and end. Its children are its own to end."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with all its children."""
        with contextlib.suppress(ProcessLookupError):  # All of the group have ended.
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> Output:
        """Make sure that nothing of it is left, and return its last words."""
        self.kill()
        self._process.wait()
        lines: list[str] = []
        messages: list[Mapping[str, Any]] = []
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self._selector.get_map() and time.monotonic() < deadline:
            output = self.read(0.1)
            lines += output.lines
            messages += output.messages
        lines += self._printed.take_rest()  # A message that was cut off is none.
        self._selector.close()
        self._stdout.close()
        os.close(self._messages.fd)
        return Output(lines, messages)

    def _output(self) -> Output:
        return Output(self._printed.take(), [json.loads(line) for line in self._messages.take()])


class _Lines:
    """Bytes from a pipe, as whole lines."""

    def __init__(self, fd: int, longest: float = math.inf) -> None:
        self.fd = fd
        self._longest = longest
        self._rest = b""
        self._lines: list[str] = []

    def read(self) -> bool:
        """Read what is there; return False at the end of the pipe."""
        data = os.read(self.fd, _READ_BYTES)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            whole, self._rest = [*whole, self._rest], b""
        self._lines += map(_text, whole)
        return bool(data)

    def take(self) -> list[str]:
        """Return the lines since the last time."""
        lines, self._lines = self._lines, []
        return lines

    def take_rest(self) -> list[str]:
        """Return the last line, if it has no end."""
        return [_text(self._rest)] if self._rest else []


def _environment() -> dict[str, str]:
    """Return the task's environment: the worker's without the appliance's settings, which hold secrets."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    return {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "1", **inherited}


def _text(line: bytes) -> str:
    """Return a line as a terminal would show it: a progress bar overwrites itself after each `\\r`."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "Popen was asked for a pipe"
    return stream
