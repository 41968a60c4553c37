"""What a worker tells the process of a job, and what the process says at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from appliance.trainer.job import JobFolder, JobSpec

__all__ = ["OUTCOME", "Outcome", "TaskSpec"]

OUTCOME = "outcome"
"""The kind of a task's last message; all others are events of the job."""


@dataclass(frozen=True)
class TaskSpec:
    """One attempt at a job. It goes through the task's stdin, for the database's URL may hold a password."""

    job: str
    spec: JobSpec
    folder: str
    """The job's folder, see `JobFolder`."""
    database_url: str
    artifact_root: str

    def to_json(self) -> str:
        """Return the task as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TaskSpec:
        """Return the task that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "spec": JobSpec(**fields["spec"])})

    @property
    def files(self) -> JobFolder:
        """The job's folder."""
        return JobFolder(Path(self.folder))


@dataclass(frozen=True)
class Outcome:
    """How a task ended, in its own words."""

    end: Literal["succeeded", "failed", "stopped", "crashed"]
    """`stopped`: it was asked to, and has written a checkpoint. `crashed`: another attempt may succeed."""
    result: Mapping[str, Any]
    error: str = ""

    def to_message(self) -> dict[str, Any]:
        """Return the message that tells it."""
        return {"kind": OUTCOME, **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Outcome:
        """Return what `to_message` told."""
        return cls(message["end"], message["result"], message["error"])
