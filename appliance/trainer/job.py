"""What a job is: the specification it is submitted with, and its state as the queue knows it."""

from __future__ import annotations

import json
import keyword
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from appliance.trainer.errors import InvalidJob
from registry.values import LABEL_NAME, MODEL_NAME, storable

__all__ = [
    "ENDED",
    "RUN_CONFIG_FIELDS",
    "Event",
    "Job",
    "JobFolder",
    "JobSpec",
    "JobState",
    "LogLine",
    "WorkerInfo",
]

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ENDED: tuple[JobState, ...] = ("succeeded", "failed", "cancelled")

RUN_CONFIG_FIELDS = (
    "keep_checkpoint_max",
    "log_step_count_steps",
    "save_checkpoints_secs",
    "save_checkpoints_steps",
    "save_summary_steps",
    "tf_random_seed",
)
"""What of `RunConfig` a job may set; each a whole number."""
MAX_TEXT_CHARACTERS = 200
"""What the columns of names hold."""


@dataclass(frozen=True)
class JobSpec:
    """What is to be done. Checked when made.

    Raises:
        InvalidJob: a field that cannot be right.
    """

    file: str
    """The user's file, relative to the root of the bundle."""
    function: str = "experiment"
    """The function in it: `(run_config, params) -> Experiment`."""
    name: str = ""
    """What people call the job; by default the model's name, or the file's."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """A JSON object, given to the function."""
    run_config: Mapping[str, int] = field(default_factory=dict)
    """Overrides of the RunConfig; any of `RUN_CONFIG_FIELDS`."""
    model: str | None = None
    """The model under which the newest export is registered; None: not at all."""
    promote: str | None = None
    """The label that is moved to the new version; None: none is."""
    source_revision: str = ""
    """The git commit of the user's folder."""
    submitted_by: str = ""
    """Who submitted the job."""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.file)
        if (
            path.is_absolute()
            or ".." in path.parts
            or path.suffix != ".py"
            or storable(self.file) != self.file
        ):
            raise InvalidJob("file", self.file, "a Python file inside the bundle, such as 'experiment.py'")
        if not self.function.isidentifier() or keyword.iskeyword(self.function):
            raise InvalidJob("function", self.function, "the name of a function in the file")
        for name in ("function", "name", "source_revision", "submitted_by"):
            _check_text(name, getattr(self, name))
        _check_name("model", self.model, MODEL_NAME)
        _check_name("promote", self.promote, LABEL_NAME)
        if self.promote is not None and self.model is None:
            raise InvalidJob("model", None, f"given to promote its new version to {self.promote!r}")
        _check_params(self.params)
        _check_run_config(self.run_config)
        if not self.name:
            object.__setattr__(self, "name", self.model or path.stem)


def _check_text(field: str, text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS or storable(text) != text:
        raise InvalidJob(field, text, f"plain text of at most {MAX_TEXT_CHARACTERS} characters")


def _check_name(field: str, name: str | None, pattern: re.Pattern[str]) -> None:
    if name is not None and not pattern.fullmatch(name):
        raise InvalidJob(field, name, f"a name that matches {pattern.pattern}, or left out")


def _check_params(params: object) -> None:
    rule = "a JSON object"
    if not isinstance(params, Mapping) or not all(isinstance(key, str) for key in params):
        raise InvalidJob("params", params, rule)
    try:
        json.dumps(dict(params), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidJob("params", params, f"{rule} ({error})") from error


def _check_run_config(run_config: object) -> None:
    if not isinstance(run_config, Mapping) or not set(run_config) <= set(RUN_CONFIG_FIELDS):
        raise InvalidJob("run_config", run_config, f"an object with any of {', '.join(RUN_CONFIG_FIELDS)}")
    for name, value in run_config.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidJob(f"run_config[{name!r}]", value, "a whole number, 0 or more")
    if {"save_checkpoints_secs", "save_checkpoints_steps"} <= set(run_config):
        rule = "given save_checkpoints_secs or save_checkpoints_steps, not both"
        raise InvalidJob("run_config", dict(run_config), rule)


@dataclass(frozen=True)
class Job:
    """A job as it stands."""

    id: str
    spec: JobSpec
    state: JobState
    created_at: datetime
    started_at: datetime | None
    """When the first attempt began."""
    finished_at: datetime | None
    worker: str | None
    """Who runs it now."""
    attempts: int
    """How often it was claimed."""
    crashes: int
    """How many of the attempts ended without a word: the worker or the process of the job died."""
    cancel_requested: bool
    error: str | None
    """Why it failed, in one line; the log has the traceback."""
    result: Mapping[str, Any]
    """`step`, `metrics`, and with a model `version`, `promoted_to` or `promotion_refused`."""
    progress: Mapping[str, Mapping[str, Any]]
    """The last event of each kind (`train`, `checkpoint`, `evaluation`, `export`) by its kind."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self.state in ENDED


@dataclass(frozen=True)
class LogLine:
    """A line that a job's process printed."""

    number: int
    """From 1, without gaps."""
    at: datetime
    line: str


@dataclass(frozen=True)
class Event:
    """Something that happened in a job."""

    number: int
    """From 1, without gaps."""
    at: datetime
    kind: str
    """`train`, `checkpoint`, `evaluation` or `export`."""
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that was seen lately."""

    name: str
    started_at: datetime
    seen_at: datetime
    seen_seconds_ago: float
    job: str | None


@dataclass(frozen=True)
class JobFolder:
    """Where a job keeps its files: `<jobs_root>/<id>/{bundle.tar.gz,code/,model/}`."""

    root: Path

    @property
    def bundle(self) -> Path:
        """The archive of the user's folder."""
        return self.root / "bundle.tar.gz"

    @property
    def code(self) -> Path:
        """The unpacked bundle; the working directory of the job's process."""
        return self.root / "code"

    @property
    def model(self) -> Path:
        """The Estimator's `model_dir`. It outlives an attempt: the next goes on from its checkpoints."""
        return self.root / "model"


def new_job_id(name: str) -> str:
    """Return an id that is readable, fit for a path and a URL, and never used before."""
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return f"{readable or 'job'}-{secrets.token_hex(4)}"
