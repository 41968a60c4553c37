"""The JSON of the control plane: what requests may say, and how records are shown."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

import registry
from appliance.trainer.jobs import Job

WaitSeconds = Annotated[float, Field(ge=0, le=600)]
"""For how long a call waits for serving to follow, in seconds."""
Expected = Annotated[int | None, Field(ge=0)]
"""The version a label must be on now, 0 for none; left out: any."""


class Request(BaseModel):
    """A request's body; an unknown field is an error, for it is a misspelled one."""

    model_config = ConfigDict(extra="forbid")


class JobRequest(Request):
    """A training job to queue."""

    file: str
    """The user's file, relative to the root of the bundle."""
    function: str = "experiment"
    name: str = ""
    params: dict[str, Any] = {}
    run_config: dict[str, int] = {}
    model: str | None = None
    promote: str | None = None
    source_revision: str = ""


class MoveLabel(Request):
    """A label to move to a version."""

    version: int = Field(ge=1)
    expect: Expected = None
    reason: str = ""
    force: bool = False
    wait_seconds: WaitSeconds = 0.0


class RollBack(Request):
    """A label to move back."""

    to: int | None = Field(default=None, ge=1)
    expect: Expected = None
    reason: str = ""
    wait_seconds: WaitSeconds = 0.0


class RemoveLabel(Request):
    """A label to take away."""

    expect: Expected = None
    reason: str = ""


class GateRules(Request):
    """The rules of a gate."""

    rules: list[str]


class ModelChanges(Request):
    """What is to change of a model; what is left out stays."""

    description: str | None = None
    tags: dict[str, str] | None = Field(None, description="In place of all it has.")


class VersionChanges(Request):
    """What is to change of a version, which is all of it that can; what is left out stays."""

    description: str | None = None
    tags: dict[str, str] | None = Field(None, description="In place of all it has.")


class Approval(Request):
    """Somebody's word that a version may go under a label."""

    label: str = "production"
    comment: str = ""


class RetentionPolicy(Request):
    """Which versions of a model are kept."""

    keep_last: int | None = Field(None, ge=1, description="How many of the newest ready ones; null: all.")
    keep_production: bool = Field(True, description="Whether all that ever were in production are kept.")


class Collecting(Request):
    """How to collect garbage."""

    dry_run: bool = Field(False, description="Whether to remove nothing, and only say what would be removed.")


class NewWebhook(Request):
    """Who is to be told of what."""

    url: str = Field(description="Where to POST the events.")
    model: str | None = Field(None, description="Only events of this model; left out: of all.")
    kinds: list[str] = Field([], description="Kinds of events, `label.*` for instance; none: all.")
    secret: str = Field("", description="The key of the signatures; left out: a random one.")
    description: str = ""


def job_json(job: Job) -> dict[str, Any]:
    """Return a job: its specification and its state side by side."""
    return plain(
        {
            "id": job.id,
            "state": job.state,
            **vars(job.spec),
            "worker": job.worker,
            "attempts": job.attempts,
            "cancel_requested": job.cancel_requested,
            "progress": job.progress,
            "result": job.result,
            "error": job.error,
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
        }
    )


def model_json(model: registry.ModelSummary) -> dict[str, Any]:
    """Return a model with its labels."""
    return plain(vars(model))


def summary_json(version: registry.VersionSummary) -> dict[str, Any]:
    """Return a version as lists show it."""
    return plain(vars(version))


def version_json(version: registry.Version, labels: dict[str, int]) -> dict[str, Any]:
    """Return a version; of its manifest only the number of files, for it may be long."""
    shown = {name: value for name, value in vars(version).items() if name != "manifest"}
    under = [label for label, number in labels.items() if number == version.version]
    return plain({**shown, "labels": under, "files": len(version.manifest)})


def promotion_json(promotion: registry.Promotion, serving: bool | None = None) -> dict[str, Any]:
    """Return a move of a label; `serving`: whether serving has followed, None when not waited for."""
    report = promotion.gate_report
    return plain(
        {**vars(promotion), "gate_report": None if report is None else report.to_json(), "serving": serving}
    )


def event_json(event: registry.Event) -> dict[str, Any]:
    """Return an event of the history."""
    report = event.gate_report
    return plain({**vars(event), "gate_report": None if report is None else report.to_json()})


def verification_json(found: registry.Verification) -> dict[str, Any]:
    """Return what became of the files of one version."""
    damages = [vars(damage) for damage in found.damages]
    return plain({**vars(found), "damages": damages, "intact": found.intact})


def gate_json(gate: registry.Gate) -> dict[str, Any]:
    """Return a gate."""
    return plain(vars(gate))


def plain(value: Any) -> Any:
    """Return what JSON can carry: times in ISO 8601, tuples as lists, nan and infinities by name."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value
