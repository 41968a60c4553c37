"""What the client gives back: frozen, typed records of jobs, versions and promotions.

A field that a newer server adds is ignored, so that an older client goes on working.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


def parse(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return the record of class `kind` that the JSON object `data` describes."""
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        if entry.name not in data:
            continue
        value = data[entry.name]
        if value is not None and (entry.name == "at" or entry.name.endswith("_at")):
            value = datetime.fromisoformat(value)
        if entry.metadata.get("numbers"):
            # JSON has no nan and no infinities, so these come by name.
            value = {name: float(number) for name, number in value.items()}
        values[entry.name] = value
    return kind(**values)


@dataclass(frozen=True)
class Job:
    """A training job."""

    id: str
    state: str
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
    name: str = ""
    file: str = ""
    function: str = "experiment"
    params: Mapping[str, Any] = field(default_factory=dict)
    run_config: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    """The name it registers its result under; None: it does not."""
    promote: str | None = None
    """The label that the registered version is promoted to; None: none."""
    source_revision: str = ""
    submitted_by: str = ""
    attempts: int = 0
    """How many times a worker has taken it up."""
    cancel_requested: bool = False
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last event of each kind."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """What came of it: `version`, the number of the registered version, among others."""
    error: str | None = None
    """One line: why it failed."""
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether the state is final."""
        return self.state in {"succeeded", "failed", "cancelled"}

    @property
    def step(self) -> int | None:
        """The last training step known."""
        return self.result.get("step", self.progress.get("train", {}).get("step"))

    @property
    def version(self) -> int | None:
        """The number of the version it registered."""
        return self.result.get("version")


@dataclass(frozen=True)
class Event:
    """Something that happened in a job."""

    number: int
    """Its place in the job, from 1."""
    kind: str
    """`train`, `checkpoint`, `evaluation` or `export`, among others."""
    fields: Mapping[str, Any]
    """What belongs to it, `step`, `loss` or `metrics` for instance."""
    at: datetime | None = None


@dataclass(frozen=True)
class LogLine:
    """One line that a job printed."""

    number: int
    """Its place in the job, from 1."""
    line: str
    at: datetime | None = None


@dataclass(frozen=True)
class Model:
    """A name with versions."""

    name: str
    description: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    newest_version: int = 0
    """The highest number given out; 0: none yet."""
    created_at: datetime | None = None


@dataclass(frozen=True)
class Version:
    """A registered version of a model; immutable once ready.

    Lists leave out signatures, libraries, fingerprint and the number of files.
    """

    model: str
    version: int
    state: str
    """`pending`, `ready`, `failed` or `deleted`."""
    uri: str = ""
    size_bytes: int = 0
    signatures: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict, metadata={"numbers": True})
    params: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    job: str | None = None
    source_revision: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    created_at: datetime | None = None
    ready_at: datetime | None = None
    error: str | None = None
    labels: Sequence[str] = ()
    data_fingerprint: str = ""
    files: int | None = None


@dataclass(frozen=True)
class Promotion:
    """One move of a label, as the history has it."""

    id: int
    model: str
    label: str
    action: str
    """`promote`, `rollback`, `undo` or `remove`."""
    from_version: int | None
    to_version: int | None
    actor: str = ""
    reason: str = ""
    at: datetime | None = None
    forced: bool = False
    gate_report: Mapping[str, Any] | None = None
    serving: bool | None = None
    """Whether the move has reached serving; None: it was not waited for."""


@dataclass(frozen=True)
class Gate:
    """The rules that a version must meet before a label moves to it."""

    model: str
    label: str
    rules: Sequence[str] = ()
    revision: int = 0
    actor: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class GateReport:
    """What a gate says about a version."""

    passed: bool
    checks: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Approval:
    """Somebody's word that a version may go under a label."""

    model: str
    version: int
    label: str
    actor: str = ""
    comment: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class HistoryEvent:
    """One change of a model or of what belongs to it."""

    id: int
    model: str
    kind: str
    """What happened, `version.ready` for instance."""
    at: datetime
    actor: str = ""
    version: int | None = None
    label: str | None = None
    from_version: int | None = None
    to_version: int | None = None
    reason: str = ""
    forced: bool = False
    gate_report: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verification:
    """What became of the files of one version."""

    model: str
    version: int
    uri: str = ""
    damages: Sequence[Mapping[str, str]] = ()
    """Each with `file`, `problem` (`missing`, `truncated`, `changed` or `extra`) and `detail`."""
    intact: bool = True


@dataclass(frozen=True)
class Retention:
    """Which versions of a model are kept."""

    model: str
    keep_last: int | None = None
    """How many of the newest ready versions; None: all."""
    keep_production: bool = True
    revision: int = 0
    actor: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class Removed:
    """Files that are gone, or would be, and why."""

    model: str
    version: int
    uri: str
    reason: str
    size_bytes: int = 0
    error: str = ""
    """Why they could not be removed."""


@dataclass(frozen=True)
class Webhook:
    """A receiver of events."""

    id: int
    url: str
    model: str | None = None
    kinds: Sequence[str] = ()
    description: str = ""
    actor: str = ""
    created_at: datetime | None = None
    secret: str = field(default="", repr=False)
    """The key of its signatures; told once, when it is added."""


@dataclass(frozen=True)
class Delivery:
    """One event on its way to one receiver."""

    id: int
    webhook: int
    event: int
    kind: str
    model: str
    state: str
    """`pending`, `delivered`, `given_up` or `dropped`."""
    attempts: int = 0
    created_at: datetime | None = None
    next_at: datetime | None = None
    done_at: datetime | None = None
    error: str = ""
