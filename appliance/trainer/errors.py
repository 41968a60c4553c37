"""Errors of the trainer.

TrainerError
+-- FolderUnusable
+-- JobNotFound
+-- InvalidJob
+-- LeaseLost
"""

from __future__ import annotations

__all__ = ["FolderUnusable", "InvalidJob", "JobNotFound", "LeaseLost", "TrainerError"]


class TrainerError(Exception):
    """Something the trainer cannot do."""


class FolderUnusable(TrainerError):
    """The worker's machine cannot use the folder of a job, for lack of room or of permission."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"Cannot unpack the job's bundle in {self.folder!r}: {self.reason}. "
            "Make room there, or set APPLIANCE_JOBS_ROOT."
        )


class JobNotFound(TrainerError):
    """No job has this id."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        return f"Cannot find job {self.job!r}. `appliance jobs list` shows the jobs there are."


class InvalidJob(TrainerError):
    """A job was submitted with a field that cannot be right."""

    def __init__(self, field: str, given: object, rule: str) -> None:
        super().__init__(field, given, rule)
        self.field, self.given, self.rule = field, given, rule

    def __str__(self) -> str:
        return f"Cannot submit the job: {self.field} must be {self.rule}. Received: {self.given!r}."


class LeaseLost(TrainerError):
    """A worker writes to a job that is no longer its own: its lease ran out and another took the job up."""

    def __init__(self, job: str, worker: str) -> None:
        super().__init__(job, worker)
        self.job, self.worker = job, worker

    def __str__(self) -> str:
        return f"Worker {self.worker!r} no longer holds job {self.job!r}: its lease ran out."
