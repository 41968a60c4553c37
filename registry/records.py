"""What the registry returns: frozen dataclasses, free of the database, safe to pickle and to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

ODD_NUMBERS = ("nan", "inf", "-inf")
"""What JSON has no numbers for, as it is written there."""


@dataclass(frozen=True)
class Model:
    """A name under which versions are registered."""

    name: str
    description: str
    created_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """One version of a model. Once it is ready nothing but its tags and description changes."""

    model: str
    version: int
    state: str
    """`pending` (being published), `ready`, `failed`, or `deleted`."""
    uri: str
    """The directory that holds `saved_model.pb`: a local path, or an fsspec URL."""
    size_bytes: int
    manifest: Mapping[str, FileDigest]
    """Relative path of each file, with `/` between the parts, to its size and hash."""
    signatures: Mapping[str, Any]
    metrics: Mapping[str, float]
    params: Mapping[str, Any]
    step: int | None
    job: str
    source_revision: str
    libraries: Mapping[str, str]
    tags: Mapping[str, str]
    description: str
    created_at: datetime
    ready_at: datetime | None
    error: str
    """Why publishing failed; empty in every other state."""
    data_fingerprint: str = ""
    """Of the data it was trained on, as its publisher computed it; equal data, equal fingerprint."""


@dataclass(frozen=True)
class FileDigest:
    """Size and SHA-256 (hexadecimal) of one file of a version."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Damage:
    """One file of a version that is not as it was published."""

    file: str
    """Relative path, with `/` between the parts."""
    problem: str
    """`missing`, `truncated`, `changed`, or `extra` for a file that was not published."""
    detail: str
    """A few words for people: `3 bytes of 5`."""

    def __str__(self) -> str:
        return f"{self.file} is {self.problem}{f' ({self.detail})' if self.detail else ''}"


@dataclass(frozen=True)
class Verification:
    """What became of the files of one version."""

    model: str
    version: int
    uri: str
    damages: tuple[Damage, ...]

    @property
    def intact(self) -> bool:
        """Whether the files are exactly those that were published."""
        return not self.damages


@dataclass(frozen=True)
class Promotion:
    """One move of a label, as the history keeps it. Never changed and never deleted."""

    id: int
    model: str
    label: str
    action: str
    """`promote`, `rollback`, `undo` or `remove`."""
    from_version: int | None
    to_version: int | None
    """None when the label was taken away."""
    actor: str
    reason: str
    at: datetime
    forced: bool
    """True when the gate refused and the promotion was made in spite of it."""
    gate_report: GateReport | None


@dataclass(frozen=True)
class Gate:
    """The rules a version must meet before a label may move to it. `revision` is 0 when none were set."""

    model: str
    label: str
    rules: tuple[str, ...]
    revision: int = 0
    actor: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class GateCheck:
    """One rule of a gate, held against one version."""

    rule: str
    passed: bool
    measured: float | str | None
    """The version's metric, or what else was found, in words; None when nothing was."""
    wanted: str
    """What would have passed, in words: `at least 0.69`."""
    detail: str
    """A whole sentence for people."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values. JSON has no nan and no infinities: such a measurement is told by name."""
        is_odd = isinstance(self.measured, float) and not math.isfinite(self.measured)
        return {**vars(self), "measured": repr(self.measured) if is_odd else self.measured}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GateCheck:
        """Return the check that `to_json` gave these values for."""
        measured = values["measured"]
        return cls(**{**values, "measured": float(measured) if measured in ODD_NUMBERS else measured})


@dataclass(frozen=True)
class GateReport:
    """What a gate said about a version: one check for each rule."""

    model: str
    version: int
    label: str
    gate_revision: int
    checks: tuple[GateCheck, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed; a gate without rules lets everything through."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        if not self.checks:
            return f"no gate on {self.label!r}"
        return "\n".join(f"{'passed' if check.passed else 'FAILED'}: {check.detail}" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as the history stores them and the API shows them."""
        return {
            "model": self.model,
            "version": self.version,
            "label": self.label,
            "gate_revision": self.gate_revision,
            "passed": self.passed,
            "checks": [check.to_json() for check in self.checks],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GateReport:
        """Return the report that `to_json` gave these values for."""
        checks = tuple(GateCheck.from_json(check) for check in values["checks"])
        return cls(values["model"], values["version"], values["label"], values["gate_revision"], checks)


@dataclass(frozen=True)
class Event:
    """One change, as the history of everything keeps it. Never changed and never deleted."""

    id: int
    """Rises with every event of a model."""
    model: str
    kind: str
    """What happened: see `registry.events`."""
    at: datetime
    actor: str
    version: int | None
    label: str | None
    from_version: int | None
    to_version: int | None
    reason: str
    forced: bool
    gate_report: GateReport | None
    details: Mapping[str, Any]


@dataclass(frozen=True)
class Approval:
    """Somebody's word that a version may go under a label."""

    model: str
    version: int
    label: str
    actor: str
    comment: str
    at: datetime


@dataclass(frozen=True)
class Retention:
    """Which versions of a model `gc` keeps. `revision` is 0 when nothing was set: then it keeps all."""

    model: str
    keep_last: int | None
    """How many of the newest ready versions stay; None: all."""
    keep_production: bool
    """Whether every version that ever was under `production` stays."""
    revision: int = 0
    actor: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class ServingTarget:
    """What should be loaded for one model."""

    model: str
    base_path: str
    """The directory whose sub-directories are the versions."""
    versions: tuple[int, ...]
    """Every labelled version, and for each label the one that a rollback would go to; ascending."""
    labels: Mapping[str, int]
    promotions: Mapping[str, int] = field(default_factory=dict)
    """For each label the id of the move that brought it where it is, for `undo_promotion`."""


@dataclass(frozen=True)
class ModelState:
    """What one gateway does with one model at the moment."""

    routes: Mapping[str, int] = field(default_factory=dict)
    """For each label the version that answers now; it may lag behind the label while a version loads."""
    versions: Mapping[int, str] = field(default_factory=dict)
    """State of each known version: START, LOADING, AVAILABLE, UNLOADING, END."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Why a version would not load."""


@dataclass(frozen=True)
class ServingReport:
    """The newest word of one gateway. One that is long past `at` has died without a goodbye."""

    gateway: str
    revision: int
    """The registry's revision that the gateway had acted upon."""
    states: Mapping[str, ModelState]
    at: datetime


@dataclass(frozen=True)
class Swept:
    """Files of a version that `sweep` or `gc` removed, would remove, or could not."""

    model: str
    version: int
    uri: str
    reason: str
    size_bytes: int = 0
    error: str = ""
    """Why they could not be removed; the next call tries again."""
