"""Shows the events of a job to a person: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from appliance.client.errors import InvalidRequest
from appliance.client.results import Event

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

LEADING_METRICS = ("auc", "accuracy", "rmse", "average_loss", "loss")
"""The metrics that a bar shows, the first two of these that there are."""

Display = Callable[[Event], None]


@contextmanager
def progress_display(title: str, show: str = "auto") -> Iterator[Display]:
    """Give a function that shows one event: `show` is `bar`, `lines`, `none` or `auto`.

    Raises:
        InvalidRequest: `show` is anything else.
    """
    if show == "auto":
        show = "bar" if sys.stdout.isatty() else "lines"
    if show == "bar":
        with make_progress() as progress:
            yield BarDisplay(progress, title)
    elif show == "lines":
        yield _print_line
    elif show == "none":
        yield lambda event: None
    else:
        raise InvalidRequest(
            f"Cannot show progress as {show!r}: choose bar, lines, none or auto.", "invalid_argument"
        )


def line_of(event: Event) -> str:
    """Return one event as a line of text."""
    parts = [event.kind]
    for key, value in event.fields.items():
        if key == "metrics" and isinstance(value, Mapping):
            parts.append(metrics_text(value))
        elif value is not None:
            parts.append(f"{key}={number_text(value)}")
    return "  ".join(parts)


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return metrics as `name=value` pairs, without the step that stands beside them."""
    return "  ".join(
        f"{name}={number_text(value)}" for name, value in metrics.items() if name != "global_step"
    )


def leading(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the few metrics that say most, for where there is little room."""
    names = [name for name in LEADING_METRICS if name in metrics] or [
        n for n in metrics if n != "global_step"
    ]
    return {name: metrics[name] for name in names[:2]}


def number_text(value: Any) -> str:
    """Return a number with five significant digits, anything else as it is."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _print_line(event: Event) -> None:
    print(line_of(event), flush=True)


def make_progress(console: Console | None = None) -> Progress:
    """Return the progress display, on standard output unless `console` says otherwise."""
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,.0f}/{task.fields[goal]}"),
        TextColumn("{task.fields[training]}"),
        TextColumn("[green]{task.fields[evaluation]}"),
        console=console,
    )


class BarDisplay:
    """A progress bar with step, loss, steps per second and the last evaluation; the rest is printed above."""

    def __init__(self, progress: Progress, title: str) -> None:
        """Add a bar to `progress`."""
        self._progress = progress
        self._bar: TaskID = progress.add_task(title, total=None, goal="?", training="queued", evaluation="")

    def __call__(self, event: Event) -> None:
        """Show one event."""
        data = event.fields
        if event.kind == "train":
            self._show_step(data)
        elif event.kind == "evaluation":
            metrics = metrics_text(leading(data.get("metrics", {})))
            self._progress.update(self._bar, evaluation=f"at {data.get('step')}: {metrics}")
        if event.kind not in ("train", "checkpoint"):
            self._progress.console.print(line_of(event), highlight=False, markup=False)

    def _show_step(self, data: Mapping[str, Any]) -> None:
        total = data.get("max_steps")
        loss, rate = data.get("loss"), data.get("steps_per_second")
        training = "" if loss is None else f"loss {number_text(loss)}"
        if rate is not None:
            training += f"  {rate:,.0f} steps/s"
        goal = "?" if total is None else f"{total:,}"
        self._progress.update(self._bar, completed=data["step"], total=total, goal=goal, training=training)
