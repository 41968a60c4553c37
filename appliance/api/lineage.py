"""Where a version comes from and what became of it, from the registry and its job's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import registry
from appliance.api.models import plain, promotion_json, version_json
from appliance.trainer.errors import JobNotFound
from appliance.trainer.jobs import JobStore
from registry.records import ODD_NUMBERS

POINTS = 100
"""How many points of a curve are told; of more, evenly chosen ones, the first and the last among them."""
MOVES = 100
EVENTS_AT_ONCE = 1000
NO_METRICS = frozenset({"kind", "step", "max_steps"})

Json = dict[str, Any]


def lineage_of(store: registry.Registry, jobs: JobStore | None, version: registry.Version) -> Json:
    """Return what is known of a version.

    Args:
        store: the registry.
        jobs: the queue; None: there is none, so nothing is told of the version's job.
        version: the version.

    Returns:
        `version`; `job`: what the queue knows of its job, or None; `curves`: for each metric of training
        (`train/loss`) and evaluation (`evaluation/auc`) its `[step, value]` pairs; `gate_reports`: the newest
        of each label; `moves`: of labels to or from it, newest first; `approvals`.
    """
    model, number = version.model, version.version
    moves = store.history(model, version=number, limit=MOVES)
    told = store.events(model, version=number, kinds=["gate.refused", "version.approved"], limit=MOVES)
    job, curves = _job(jobs, version.job)
    return plain(
        {
            "version": version_json(version, store.labels(model)),
            "job": job,
            "curves": curves,
            "gate_reports": _reports(number, moves, told),
            "moves": [promotion_json(move) for move in moves],
            "approvals": [
                {"label": event.label, "actor": event.actor, "at": event.at, "comment": event.reason}
                for event in told
                if event.kind == "version.approved"
            ],
        }
    )


def _reports(
    number: int, moves: Sequence[registry.Promotion], told: Sequence[registry.Event]
) -> dict[str, Json]:
    """Return what each label's gate said last of the version, by label."""
    said = [
        *((move.at, move.label, move.gate_report) for move in moves if move.to_version == number),
        *((event.at, event.label, event.gate_report) for event in told),
    ]
    newest_last = sorted((entry for entry in said if entry[2] is not None), key=lambda entry: entry[0])
    return {str(label): {**report.to_json(), "at": at} for at, label, report in newest_last if report}


def _job(jobs: JobStore | None, name: str) -> tuple[Json | None, dict[str, list[list[Any]]]]:
    if jobs is None or not name:
        return None, {}
    try:
        job = jobs.get(name)
    except JobNotFound:
        return None, {}
    shown = {
        "id": job.id,
        "state": job.state,
        "file": job.spec.file,
        "function": job.spec.function,
        "submitted_by": job.spec.submitted_by,
        "attempts": job.attempts,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }
    return shown, curves_of((event.kind, event.fields) for event in _events(jobs, name))


def _events(jobs: JobStore, name: str) -> Iterable[Any]:
    after = 0
    while page := jobs.events(name, after, EVENTS_AT_ONCE):
        yield from page
        after = page[-1].number


def curves_of(events: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[list[Any]]]:
    """Return, for each metric that events of training and evaluation tell, its `[step, value]` pairs.

    A job that was taken up again from a checkpoint tells some steps twice; the later word counts. Events have
    nan and infinities by name, and so have the pairs.
    """
    found: dict[str, dict[int, float | str]] = {}
    for kind, fields in events:
        step = fields.get("step")
        if kind not in ("train", "evaluation") or not isinstance(step, int):
            continue
        values = fields.get("metrics", {}) if kind == "evaluation" else fields
        for name, value in values.items():
            if name not in NO_METRICS and name != "global_step" and _is_number(value):
                found.setdefault(f"{kind}/{name}", {})[step] = value
    return {name: _thinned([list(pair) for pair in sorted(curve.items())]) for name, curve in found.items()}


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in ODD_NUMBERS


def _thinned(points: list[list[Any]]) -> list[list[Any]]:
    if len(points) <= POINTS:
        return points
    return [points[round(index * (len(points) - 1) / (POINTS - 1))] for index in range(POINTS)]
