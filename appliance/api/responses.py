"""What the routes of the registry answer, for the OpenAPI page. Tests hold real answers against it.

Answers are made by the functions of `appliance.api.models` and not checked again on the way out: a list of a
hundred versions would take longer to check than to read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Metrics = Annotated[
    dict[str, float | str], Field(description="nan and infinities, which JSON has not, are told by name.")
]


class Response(BaseModel):
    """An answer; there is nothing in it that is not said here."""

    model_config = ConfigDict(extra="forbid")


class ErrorFields(Response):
    """What went wrong."""

    code: str = Field(description="The kind of error in snake case, `version_not_found` for instance.")
    message: str = Field(description="A sentence for people: what failed, with what, and what to do.")


class ErrorBody(Response):
    """The answer to a request that did not come about."""

    error: ErrorFields


class ModelBody(Response):
    """A model."""

    name: str
    description: str
    tags: dict[str, str]
    labels: dict[str, int] = Field(description="The version under each label.")
    newest_version: int = Field(description="The highest number given out; 0: none yet.")
    created_at: datetime


class ModelsBody(Response):
    """A page of models, by name."""

    models: list[ModelBody]
    next_cursor: str


class VersionSummaryBody(Response):
    """A version, as lists show it."""

    model: str
    version: int
    state: str
    uri: str
    size_bytes: int
    metrics: Metrics
    params: dict[str, Any]
    step: int | None
    job: str
    source_revision: str
    tags: dict[str, str]
    description: str
    created_at: datetime
    ready_at: datetime | None
    error: str
    labels: list[str]


class VersionBody(VersionSummaryBody):
    """A version with all that is known of it, but for the hashes of its files."""

    signatures: dict[str, Any]
    libraries: dict[str, str]
    data_fingerprint: str
    files: int = Field(description="How many files it has.")


class VersionsBody(Response):
    """A page of versions."""

    versions: list[VersionSummaryBody]
    next_cursor: str


class LabelsBody(Response):
    """The version under each label."""

    labels: dict[str, int]


class GateCheckBody(Response):
    """One rule of a gate, held against a version."""

    model_config = ConfigDict(extra="allow")

    rule: str
    passed: bool
    wanted: str
    detail: str


class GateReportBody(Response):
    """What a gate says about a version."""

    model: str
    version: int
    label: str
    gate_revision: int
    passed: bool
    checks: list[GateCheckBody]


class GateBody(Response):
    """The rules of a label."""

    model: str
    label: str
    rules: list[str]
    revision: int = Field(description="Counts the sets of rules; 0: none was ever set.")
    actor: str
    at: datetime | None


class PromotionBody(Response):
    """A move of a label, as the history keeps it."""

    id: int
    model: str
    label: str
    action: str = Field(description="`promote`, `rollback`, `undo` or `remove`.")
    from_version: int | None
    to_version: int | None
    actor: str
    reason: str
    at: datetime
    forced: bool
    gate_report: GateReportBody | None
    serving: bool | None = Field(description="Whether serving has followed; null: it was not waited for.")


class HistoryBody(Response):
    """Moves of labels, newest first."""

    promotions: list[PromotionBody]
    next_before: int | None = Field(description="`before` of the next page; null on the last.")


class EventBody(Response):
    """A change."""

    id: int
    model: str
    kind: str = Field(description="What happened, `version.ready` for instance.")
    at: datetime
    actor: str
    version: int | None
    label: str | None
    from_version: int | None
    to_version: int | None
    reason: str
    forced: bool
    gate_report: GateReportBody | None
    details: dict[str, Any]


class EventsBody(Response):
    """Changes, newest first."""

    events: list[EventBody]
    next_before: int | None = Field(description="`before` of the next page; null on the last.")


class ApprovalBody(Response):
    """Somebody's word that a version may go under a label."""

    model_config = ConfigDict(extra="allow")

    version: int
    label: str
    actor: str
    comment: str
    at: datetime


class ApprovalNote(Response):
    """An approval, as the lineage tells it."""

    label: str
    actor: str
    at: datetime
    comment: str


class JobNote(Response):
    """The job that made a version."""

    id: str
    state: str
    file: str
    function: str
    submitted_by: str
    attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class DatedGateReport(GateReportBody):
    """What a gate said, and when."""

    at: datetime


class LineageBody(Response):
    """Where a version comes from and what became of it."""

    version: VersionBody
    job: JobNote | None = Field(description="null: the queue knows none of its id.")
    curves: dict[str, list[tuple[int, float | str]]] = Field(
        description="For each metric of training and evaluation its pairs of step and value, 100 at most; "
        "nan and infinities by name."
    )
    gate_reports: dict[str, DatedGateReport] = Field(description="The newest of each label.")
    moves: list[PromotionBody] = Field(description="Of labels, to the version or away from it; newest first.")
    approvals: list[ApprovalNote]


class WebhookBody(Response):
    """A receiver of events."""

    id: int
    url: str
    model: str | None
    kinds: list[str]
    description: str
    actor: str
    created_at: datetime
    secret: str = Field(description="The key of its signatures; told once, when it is added, then empty.")


class WebhooksBody(Response):
    """The webhooks, oldest first."""

    webhooks: list[WebhookBody]


class DeliveryBody(Response):
    """One event on its way to one receiver."""

    id: int
    webhook: int
    event: int
    kind: str
    model: str
    state: str = Field(description="`pending`, `delivered`, `given_up` or `dropped`.")
    attempts: int
    created_at: datetime
    next_at: datetime | None
    done_at: datetime | None
    error: str


class DeliveriesBody(Response):
    """Deliveries, newest first."""

    deliveries: list[DeliveryBody]


class DamageBody(Response):
    """One file that is not as it was published."""

    file: str
    problem: str = Field(description="`missing`, `truncated`, `changed` or `extra`.")
    detail: str


class VerificationBody(Response):
    """What became of the files of one version."""

    model: str
    version: int
    uri: str
    intact: bool
    damages: list[DamageBody]


class VerificationsBody(Response):
    """What became of the files of versions."""

    versions: list[VerificationBody]


class RetentionBody(Response):
    """Which versions of a model are kept."""

    model: str
    keep_last: int | None
    keep_production: bool
    revision: int
    actor: str
    at: datetime | None


class RemovedNote(Response):
    """Files that are gone, or would be, and why."""

    model: str
    version: int
    uri: str
    reason: str
    size_bytes: int
    error: str = Field(description="Why they could not be removed; empty: they were, or may be.")


class RemovedBody(Response):
    """What was removed; what would be, when only that was asked."""

    removed: list[RemovedNote]
