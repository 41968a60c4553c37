"""Keeps programs running: starts each, restarts a dead one after a pause, stops all, leaves nothing."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

CANNOT_START = 8
"""The exit code of a program that would fail again in the same way, because of a port taken for instance."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A program that ran this long is sound: its next end counts as the first again."""
_PR_SET_PDEATHSIG = 1
_LARGEST_LOG_BYTES = 16 << 20


def pause_before_restart(failures: int) -> float:
    """Return the pause before the next start after so many ends in a row, in seconds: doubled each time."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1), LONGEST_PAUSE_SECONDS)


class CannotStart(Exception):
    """A program ended during start-up in a way that another try would not mend."""

    def __init__(self, program: str, exit_code: int, reason: str) -> None:
        """Take the program's name, its exit code, and the last line of its log."""
        super().__init__(program, exit_code, reason)
        self.program, self.exit_code, self.reason = program, exit_code, reason

    def __str__(self) -> str:
        return self.reason or f"The {self.program} ended with exit code {self.exit_code} and said nothing."


@dataclass
class Program:
    """One program to keep running."""

    name: str
    command: Sequence[str]
    log_file: Path
    """Its standard output and error are appended here."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables besides those of this process."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float = 0.0
    log_start: int = 0

    def start(self) -> None:
        """Start the program in a session of its own, so that a key press in the terminal reaches only us."""
        if self.log_file.exists() and self.log_file.stat().st_size > _LARGEST_LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with self.log_file.open("ab") as output:
            self.log_start = output.tell()
            self.process = subprocess.Popen(
                list(self.command),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
        self.started_at = time.monotonic()

    def last_line(self) -> str:
        """Return the last line it has written since it was started."""
        with self.log_file.open("rb") as lines:
            lines.seek(self.log_start)
            written = lines.read().decode(errors="replace").strip().splitlines()
        return written[-1] if written else ""

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it started."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            log.debug("already_gone", extra={"program": self.name})


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """Return what a child runs before its program so that it is told to stop when this process is killed."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return prepare


class Supervisor:
    """Runs programs until told to stop."""

    def __init__(self, programs: Sequence[Program], *, grace_seconds: float = 30.0) -> None:
        """Take the programs; `grace_seconds` is how long each may take to stop before it is killed."""
        self.programs = programs
        self._grace_seconds = grace_seconds

    def start(self) -> None:
        """Start all programs."""
        for program in self.programs:
            program.start()

    def tend(self) -> None:
        """Look after each program once: note its end, start it again when its pause is over.

        Raises:
            CannotStart: a program ended with `CANNOT_START` before it ever ran steadily.
        """
        now = time.monotonic()
        for program in self.programs:
            if program.process is None:
                if now >= program.restart_at:
                    program.start()
            elif program.process.poll() is not None:
                self._ended(program, program.process.returncode, now)

    def _ended(self, program: Program, exit_code: int, now: float) -> None:
        # What it started in its group (a job's process, for one) must not outlive it.
        program.signal(signal.SIGKILL)
        steady = now - program.started_at >= STEADY_SECONDS
        if exit_code == CANNOT_START and program.failures == 0 and not steady:
            raise CannotStart(program.name, exit_code, program.last_line().removeprefix("error: "))
        program.failures = 1 if steady else program.failures + 1
        pause = pause_before_restart(program.failures)
        program.process, program.restart_at = None, now + pause
        log.warning(
            "program_ended",
            extra={"program": program.name, "exit_code": exit_code, "restart_in_seconds": pause},
        )

    def stop(self) -> None:
        """Stop all programs, in reverse order of their start, and wait until nothing of them is left.

        A KeyboardInterrupt meanwhile, from a second signal, ends the grace: they are killed.
        """
        running = [program for program in reversed(self.programs) if program.process is not None]
        try:
            self._end(running)
        except KeyboardInterrupt:
            log.warning("grace_ended", extra={"programs": [program.name for program in running]})
        for program in running:
            program.signal(signal.SIGKILL)
            if program.process is not None:
                program.process.wait()
            program.process = None

    def _end(self, programs: Sequence[Program]) -> None:
        """Tell programs to end, and wait until they have, or the grace is over."""
        processes = [(each.name, each.process) for each in programs if each.process is not None]
        for _, process in processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_seconds
        for name, process in processes:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("program_killed", extra={"program": name})
