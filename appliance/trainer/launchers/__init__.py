"""Launchers start the process of a job somewhere. `local` starts it on the worker's own machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from appliance.trainer.task_spec import TaskSpec

__all__ = ["Launcher", "Output", "RunningTask"]


@dataclass(frozen=True)
class Output:
    """What a task has said since it was last asked."""

    lines: Sequence[str]
    """What it printed, without line ends."""
    messages: Sequence[Mapping[str, Any]]
    """Its events, each with a `kind`, and at last its outcome."""


class RunningTask(Protocol):
    """A process of a job. For use by one thread."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the number of the signal that killed it."""

    def read(self, timeout_seconds: float) -> Output:
        """Return what was said, after waiting up to `timeout_seconds` for something to be said."""

    def stop(self) -> None:
        """Ask it to write a checkpoint and end."""

    def kill(self) -> None:
        """End it at once, with all its children."""

    def close(self) -> Output:
        """Make sure that nothing of it is left, and return its last words."""


class Launcher(Protocol):
    """Starts tasks."""

    def launch(self, task: TaskSpec) -> RunningTask:
        """Start a task. It dies with this process, and with the thread that called."""
