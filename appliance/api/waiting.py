"""Waits until serving has followed a move of a label, or says why it will not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import registry
from appliance.api.errors import LoadFailed

SILENT_AFTER = timedelta(seconds=30)
"""A gateway that has reported nothing for so long is not waited for."""
FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.1


def wait_until_served(store: registry.Registry, move: registry.Promotion, timeout_seconds: float) -> bool:
    """Return whether, within the time, every live gateway answers with the version of `move`.

    Raises:
        LoadFailed: the version would not load, and the move was undone.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        if is_served(store.serving_reports(), move, datetime.now(UTC)):
            return True
        raise_if_undone(store, move)
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def is_served(reports: Sequence[registry.ServingReport], move: registry.Promotion, now: datetime) -> bool:
    """Return whether there is a live gateway, and each live one routes the label of `move` to its version."""
    live = [report for report in reports if now - report.at < SILENT_AFTER]
    return bool(live) and all(_route(report, move) == move.to_version for report in live)


def _route(report: registry.ServingReport, move: registry.Promotion) -> int | None:
    state = report.states.get(move.model)
    return None if state is None else state.routes.get(move.label)


def raise_if_undone(store: registry.Registry, move: registry.Promotion) -> None:
    """Raise LoadFailed if `move` was undone."""
    for later in store.history(move.model, move.label, after=move.id):
        if later.action == "undo" and later.from_version == move.to_version:
            raise LoadFailed(move.model, move.to_version, later.reason)
