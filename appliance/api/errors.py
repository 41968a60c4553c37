"""One table from errors to HTTP status; each goes out as `{"error": {"code": ..., "message": ...}}`."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

import registry.errors
from appliance import bundle
from appliance.trainer import errors as trainer_errors

log = logging.getLogger(__name__)


class LoadFailed(Exception):
    """A promoted version would not load, so the promotion was undone."""

    def __init__(self, model: str, version: int | None, reason: str) -> None:
        super().__init__(model, version, reason)
        self.model, self.version, self.reason = model, version, reason

    def __str__(self) -> str:
        return f"Version {self.version} of model {self.model!r} was promoted and put back: {self.reason}"


class BundleNotKept(Exception):
    """The folder of jobs cannot be written, for lack of room or of permission."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"The server cannot keep the bundle in its folder {self.folder!r}: {self.reason}. "
            "Make room or give the permission there, or set APPLIANCE_JOBS_ROOT; then submit again."
        )


# Of an error's classes the nearest one in the table decides.
STATUS: dict[type[Exception], int] = {
    registry.errors.InvalidInput: 400,
    registry.errors.InvalidRule: 422,
    registry.errors.NotFound: 404,
    registry.errors.Conflict: 409,
    registry.errors.ArtifactsUnavailable: 503,
    registry.errors.DatabaseUnavailable: 503,
    registry.errors.RegistryError: 500,
    trainer_errors.InvalidJob: 422,
    trainer_errors.JobNotFound: 404,
    trainer_errors.TrainerError: 500,
    bundle.InvalidBundle: 422,
    bundle.BundleTooLarge: 413,
    LoadFailed: 409,
    BundleNotKept: 507,
}


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it: status, code and message."""

    status: int
    code: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": {"code": self.code, "message": self.message}}


def problem_of(error: BaseException) -> Problem:
    """Return how an error is told: `VersionNotFound` as 404, `version_not_found`, and its own text."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return Problem(STATUS[kind], code_of(type(error)), str(error))
    raise error


def code_of(kind: type[BaseException]) -> str:
    """Return the code of an error class: its name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
