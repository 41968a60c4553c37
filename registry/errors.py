"""All errors of the registry, in one tree.

RegistryError
├── InvalidInput                the caller's value cannot be right, whatever the database holds
│   ├── InvalidName
│   ├── InvalidRule
│   └── InvalidSavedModel
├── NotFound
│   ├── ModelNotFound
│   ├── VersionNotFound
│   ├── LabelNotFound
│   ├── PromotionNotFound
│   ├── WebhookNotFound
│   └── DeliveryNotFound
├── Conflict                    right in itself, but not as things stand
│   ├── ModelExists
│   ├── LabelMoved
│   ├── VersionNotReady
│   ├── VersionInUse
│   ├── ArtifactMissing
│   ├── ArtifactDamaged
│   ├── RollbackRefused
│   ├── UndoRefused
│   └── GateRefused
├── PublishFailed               the version is kept as `failed`
├── ExportFailed                nothing half is left
├── ArtifactsUnavailable        the store of the files does not answer
│   └── FilesNotRemoved         the version is deleted all the same
└── DatabaseError
    ├── DatabaseUnavailable
    │   ├── DatabaseBusy        others hold it for longer than anybody waits
    │   └── DatabaseGone        its file was deleted while it was in use
    ├── DatabaseTooOld
    └── DatabaseTooNew
"""

from __future__ import annotations

from collections.abc import Sequence

from registry.records import Damage, GateReport

LISTED_DAMAGES = 5
"""How many damaged files an error names."""


class RegistryError(Exception):
    """Anything the registry refuses or fails to do."""


class InvalidInput(RegistryError, ValueError):
    """The given value can never be accepted."""


class InvalidName(InvalidInput):
    """The name is not safe for paths, URLs and TensorFlow Serving configs."""

    def __init__(self, kind: str, name: str, pattern: str) -> None:
        super().__init__(kind, name, pattern)
        self.kind, self.name, self.pattern = kind, name, pattern

    def __str__(self) -> str:
        return (
            f"Cannot use {self.name!r} as a {self.kind} name. It must match {self.pattern}: "
            f"at most 128 letters, digits, '_', '.' and '-', and begin with a "
            f"{'letter' if self.kind == 'label' else 'letter or digit'}."
        )


class InvalidRule(InvalidInput):
    """The text is not a rule of a gate."""

    def __init__(self, rule: str, problem: str = "") -> None:
        super().__init__(rule, problem)
        self.rule, self.problem = rule, problem

    def __str__(self) -> str:
        why = f": {self.problem}" if self.problem else ""
        return (
            f"Cannot read the gate rule {self.rule!r}{why}. Write it like one of: 'auc >= 0.69', "
            "'loss <= 0.3', 'auc no worse than production', "
            "'auc no worse than production by more than 0.01', "
            "'my_cost no worse than production (lower is better)', 'signatures compatible with production', "
            "'tag owner', 'tag stage = prod', 'predict {\"x\": [[1.0]]} gives y between 0 and 1', "
            "'approved by another'."
        )


class InvalidSavedModel(InvalidInput):
    """The directory to publish is not a SavedModel."""

    def __init__(self, directory: str, problem: str) -> None:
        super().__init__(directory, problem)
        self.directory, self.problem = directory, problem

    def __str__(self) -> str:
        return (
            f"Cannot publish {self.directory!r}: {self.problem}. Give the directory of a SavedModel, "
            "the one with saved_model.pb directly in it."
        )


class NotFound(RegistryError, LookupError):
    """The registry has no such thing."""


class ModelNotFound(NotFound):
    """No model has this name."""

    def __init__(self, model: str, known: Sequence[str]) -> None:
        super().__init__(model, known)
        self.model, self.known = model, known

    def __str__(self) -> str:
        return (
            f"Cannot find model {self.model!r}; registered: {', '.join(self.known) or 'none'}. "
            "Make it first, by create_model or by an import, or ask for one of these."
        )


class VersionNotFound(NotFound):
    """The model has no such version."""

    def __init__(self, model: str, version: int, known: Sequence[int]) -> None:
        super().__init__(model, version, known)
        self.model, self.version, self.known = model, version, known

    def __str__(self) -> str:
        newest = ", ".join(map(str, self.known)) or "none"
        return (
            f"Cannot find version {self.version} of model {self.model!r}; newest registered: {newest}. "
            "Publish it first, or ask for one of these."
        )


class LabelNotFound(NotFound):
    """The model has no such label."""

    def __init__(self, model: str, label: str, known: Sequence[str]) -> None:
        super().__init__(model, label, known)
        self.model, self.label, self.known = model, label, known

    def __str__(self) -> str:
        return (
            f"Cannot find label {self.label!r} of model {self.model!r}; labels: "
            f"{', '.join(self.known) or 'none'}. Promote a version to it first, or ask for one of these."
        )


class PromotionNotFound(NotFound):
    """The history has no entry with this id."""

    def __init__(self, promotion: int) -> None:
        super().__init__(promotion)
        self.promotion = promotion

    def __str__(self) -> str:
        return f"Cannot find promotion {self.promotion} in the history. history(model) lists the ids."


class WebhookNotFound(NotFound):
    """There is no such webhook, or no longer."""

    def __init__(self, webhook: int, known: Sequence[int]) -> None:
        super().__init__(webhook, known)
        self.webhook, self.known = webhook, known

    def __str__(self) -> str:
        known = ", ".join(map(str, self.known)) or "none"
        return f"Cannot find webhook {self.webhook}; there are: {known}. Ask for one of these."


class DeliveryNotFound(NotFound):
    """There is no such delivery, or it arrived so long ago that it has been forgotten."""

    def __init__(self, delivery: int) -> None:
        super().__init__(delivery)
        self.delivery = delivery

    def __str__(self) -> str:
        return f"Cannot find delivery {self.delivery}. Ask for the deliveries of its webhook, by their ids."


class Conflict(RegistryError):
    """The request does not fit what the registry holds at the moment."""


class ModelExists(Conflict):
    """A model with this name is there already."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"Cannot create model {self.model!r}: it exists. Take another name, or pass exist_ok=True."


class LabelMoved(Conflict):
    """The label is not where the caller expected it (compare-and-set failed)."""

    def __init__(self, model: str, label: str, expected: int | None, actual: int | None) -> None:
        super().__init__(model, label, expected, actual)
        self.model, self.label, self.expected, self.actual = model, label, expected, actual

    def __str__(self) -> str:
        expected = "no version" if self.expected is None else f"version {self.expected}"
        actual = "no version" if self.actual is None else f"version {self.actual}"
        return (
            f"Cannot move label {self.label!r} of model {self.model!r}: expected it on {expected}, "
            f"it is on {actual}. Somebody moved it meanwhile; look at the history, then try again."
        )


class VersionNotReady(Conflict):
    """The version cannot be served: it is pending, failed or deleted."""

    def __init__(self, model: str, version: int, state: str, error: str = "") -> None:
        super().__init__(model, version, state, error)
        self.model, self.version, self.state, self.error = model, version, state, error

    @property
    def problem(self) -> str:
        """What is wrong with it, in words."""
        return f"it is {self.state}" + (f" ({self.error})" if self.error else "")

    def __str__(self) -> str:
        return (
            f"Cannot use version {self.version} of model {self.model!r}: {self.problem}. "
            "Only a ready version can be used; publish again, or choose another."
        )


class VersionInUse(Conflict):
    """The version is labelled, or still being published, so it cannot be deleted."""

    def __init__(self, model: str, version: int, why: str) -> None:
        super().__init__(model, version, why)
        self.model, self.version, self.why = model, version, why

    def __str__(self) -> str:
        return f"Cannot delete version {self.version} of model {self.model!r}: {self.why}."


class ArtifactMissing(Conflict):
    """The version is ready in the database, but its files are gone."""

    def __init__(self, model: str, version: int, uri: str) -> None:
        super().__init__(model, version, uri)
        self.model, self.version, self.uri = model, version, uri

    @property
    def problem(self) -> str:
        """What is wrong with it, in words."""
        return f"there is no SavedModel at {self.uri!r}"

    def __str__(self) -> str:
        return (
            f"Cannot use version {self.version} of model {self.model!r}: {self.problem}. "
            "Restore the files there, or choose another version."
        )


class ArtifactDamaged(Conflict):
    """The version is ready in the database, but its files are not those that were published."""

    def __init__(self, model: str, version: int, uri: str, damages: Sequence[Damage]) -> None:
        super().__init__(model, version, uri, damages)
        self.model, self.version, self.uri, self.damages = model, version, uri, damages

    @property
    def problem(self) -> str:
        """What is wrong with it, in words."""
        listed = "; ".join(map(str, self.damages[:LISTED_DAMAGES]))
        more = len(self.damages) - LISTED_DAMAGES
        return f"at {self.uri!r} {listed}{f' and {more} more' if more > 0 else ''}"

    def __str__(self) -> str:
        return (
            f"Cannot use version {self.version} of model {self.model!r}: {self.problem}. "
            "Restore the files there, or choose another version."
        )


class RollbackRefused(Conflict):
    """There is nothing the label could go back to."""

    def __init__(self, model: str, label: str, why: str) -> None:
        super().__init__(model, label, why)
        self.model, self.label, self.why = model, label, why

    def __str__(self) -> str:
        return f"Cannot roll back label {self.label!r} of model {self.model!r}: {self.why}."


class UndoRefused(Conflict):
    """The label has moved on since the promotion that was to be undone."""

    def __init__(self, promotion: int, model: str, label: str, latest: int) -> None:
        super().__init__(promotion, model, label, latest)
        self.promotion, self.model, self.label, self.latest = promotion, model, label, latest

    def __str__(self) -> str:
        return (
            f"Cannot undo promotion {self.promotion}: label {self.label!r} of model {self.model!r} has "
            f"moved since, by promotion {self.latest}. Only the latest move can be undone."
        )


class GateRefused(Conflict):
    """The gate of the label does not let this version through."""

    def __init__(self, report: GateReport, remedy: str) -> None:
        super().__init__(report, remedy)
        self.report, self.remedy = report, remedy

    def __str__(self) -> str:
        failed = "; ".join(check.detail for check in self.report.checks if not check.passed)
        return (
            f"Cannot promote version {self.report.version} of model {self.report.model!r} to "
            f"{self.report.label!r}: {failed}. {self.remedy}"
        )


class PublishFailed(RegistryError):
    """The files could not be brought into place. The version stays as `failed`; its number is gone."""

    def __init__(self, model: str, version: int, reason: str) -> None:
        super().__init__(model, version, reason)
        self.model, self.version, self.reason = model, version, reason

    def __str__(self) -> str:
        return (
            f"Cannot publish version {self.version} of model {self.model!r}: {self.reason}. "
            "Nothing of it is visible; publish again once the cause is gone."
        )


class ArtifactsUnavailable(RegistryError):
    """The store of the files does not answer, so nobody knows whether a version's files are there."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(uri, reason)
        self.uri, self.reason = uri, reason

    def __str__(self) -> str:
        return (
            f"Cannot get at the files in {self.uri!r}: {self.reason}. "
            "Check that the store can be reached, and that its files may be read and written."
        )


class FilesNotRemoved(ArtifactsUnavailable):
    """The version is deleted, but its files are still there."""

    def __init__(self, model: str, version: int, uri: str, reason: str) -> None:
        super().__init__(uri, reason)
        self.args = (model, version, uri, reason)
        self.model, self.version = model, version

    def __str__(self) -> str:
        return (
            f"Version {self.version} of model {self.model!r} is deleted, but its files in {self.uri!r} could "
            f"not be removed: {self.reason}. gc tries again; see that they may be removed."
        )


class ExportFailed(RegistryError):
    """The files could not be copied out."""

    def __init__(self, model: str, version: int, target: str, reason: str) -> None:
        super().__init__(model, version, target, reason)
        self.model, self.version, self.target, self.reason = model, version, target, reason

    def __str__(self) -> str:
        return (
            f"Cannot export version {self.version} of model {self.model!r} to {self.target!r}: "
            f"{self.reason}. Nothing was left there: make room or give the permission, or name another."
        )


class DatabaseError(RegistryError):
    """The database itself cannot be used."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached or opened."""

    def __init__(
        self, url: str, reason: str, remedy: str = "Check its address, and that it runs and can be written."
    ) -> None:
        super().__init__(url, reason, remedy)
        self.url, self.reason, self.remedy = url, reason, remedy

    def __str__(self) -> str:
        return f"Cannot use the database {self.url}: {self.reason}. {self.remedy}"


class DatabaseBusy(DatabaseUnavailable):
    """Other transactions were in the way for longer than anybody waits."""

    def __init__(self, url: str, waited_seconds: float, holder: int | None) -> None:
        whose = "others still hold it" if holder is None else f"process {holder} holds its write lock"
        who = "they are" if holder is None else "that process is"
        super().__init__(
            url,
            f"it is busy: after {waited_seconds:.3g} s of waiting, {whose}",
            f"Wait until {who} done, then try again.",
        )
        self.args = (url, waited_seconds, holder)
        self.waited_seconds, self.holder = waited_seconds, holder


class DatabaseGone(DatabaseUnavailable):
    """The file of a SQLite database was deleted, or replaced by another, while it was in use."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            url,
            f"its file was {what} while it was in use",
            "Stop every process that uses it; then move the same file back, or remove what has its name with "
            "-wal and -shm at the end, and put a backup in its place. Without the file it would start empty.",
        )
        self.args = (url, what)
        self.what = what


class DatabaseTooOld(DatabaseError):
    """The tables were made by an older release, and migrating was not asked for."""

    def __init__(self, url: str, found: str, wanted: str, command: str) -> None:
        super().__init__(url, found, wanted, command)
        self.url, self.found, self.wanted, self.command = url, found, wanted, command

    def __str__(self) -> str:
        return (
            f"Cannot use the database {self.url}: its tables are at revision {self.found}, this release "
            f"needs {self.wanted}. Run `{self.command}`."
        )


class DatabaseTooNew(DatabaseError):
    """The tables were made by a newer release."""

    def __init__(self, url: str, found: str, wanted: str) -> None:
        super().__init__(url, found, wanted)
        self.url, self.found, self.wanted = url, found, wanted

    def __str__(self) -> str:
        return (
            f"Cannot use the database {self.url}: its tables are at revision {self.found}, which this "
            f"release (at {self.wanted}) does not know. Run `pip install --upgrade estimator-appliance`."
        )
