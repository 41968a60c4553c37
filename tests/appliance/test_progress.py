"""What a person sees of a job that trains."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from appliance.client import Event, InvalidRequest
from appliance.client.progress import BarDisplay, line_of, make_progress, progress_display


def events() -> list[Event]:
    train = {"step": 1500, "max_steps": 2000, "loss": 0.4321234, "steps_per_second": 1234.5}
    evaluation = {"step": 1000, "metrics": {"auc": 0.70512345, "loss": 0.5, "global_step": 1000}}
    kinds = {"checkpoint": {"step": 1000, "path": "/m"}, "evaluation": evaluation, "train": train}
    return [Event(number, kind, fields) for number, (kind, fields) in enumerate(kinds.items(), start=1)]


def test_bar_shows_step_loss_speed_and_the_last_evaluation() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=110, color_system=None)
    with make_progress(console) as progress:
        display = BarDisplay(progress, "flights-1")
        for event in [*events(), Event(4, "export", {"name": "best", "step": 2000})]:
            display(event)
    shown = screen.getvalue()
    last = shown.splitlines()[-2]
    assert "flights-1 ━" in last
    assert "1,500/2,000 loss 0.43212  1,234 steps/s at 1000: auc=0.70512  loss=0.5" in last
    assert "evaluation  step=1000  auc=0.70512  loss=0.5" in shown
    assert "export  name=best  step=2000" in shown
    assert "/m" not in shown


def test_lines_show_every_event() -> None:
    assert [line_of(event) for event in events()] == [
        "checkpoint  step=1000  path=/m",
        "evaluation  step=1000  auc=0.70512  loss=0.5",
        "train  step=1500  max_steps=2000  loss=0.43212  steps_per_second=1234.5",
    ]


def test_nothing_is_shown_when_asked_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display("flights-1", "none") as display:
        display(events()[0])
    assert capsys.readouterr().out == ""
    with (
        pytest.raises(InvalidRequest, match="Cannot show progress as 'fireworks'"),
        progress_display("f", "fireworks"),
    ):
        pass


def test_length_that_is_not_known_is_shown_as_such() -> None:
    screen = io.StringIO()
    progress: Progress = make_progress(
        Console(file=screen, force_terminal=True, width=110, color_system=None)
    )
    with progress:
        BarDisplay(progress, "flights-1")(Event(1, "train", {"step": 7}))
    assert "7/?" in screen.getvalue()
