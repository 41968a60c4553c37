"""What lists may be asked for: the parameters of the search routes, and of the command's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from appliance.api.models import Request

Limit = Annotated[int, Field(ge=1, le=1000, description="How many at most, 1 to 1000.")]
Cursor = Annotated[str, Field(description="`next_cursor` of the page before; empty: the first page.")]
Tags = Annotated[
    list[str], Field(description="`key=value`, or `key` for any value; several: all of them must be there.")
]


class ModelQuery(Request):
    """Which models to list."""

    name: str = Field("", description="A pattern with `*` and `?`, `flights-*` for instance.")
    tag: Tags = []
    limit: Limit = 100
    cursor: Cursor = ""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Registry.search_models`."""
        return {"name": self.name, "tags": tags_of(self.tag), "limit": self.limit, "cursor": self.cursor}


class VersionQuery(Request):
    """Which versions of a model to list."""

    state: list[str] = Field(
        [], description="`pending`, `ready`, `failed`, `deleted`; none: all but `deleted`."
    )
    metric: list[str] = Field([], description="Conditions such as `auc > 0.7`; all must hold.")
    tag: Tags = []
    job: str | None = Field(None, description="The id of the job that made it.")
    label: str | None = Field(None, description="The label it is under now.")
    created_from: datetime | None = Field(None, description="Not before; without a zone it is UTC.")
    created_before: datetime | None = Field(None, description="Before; without a zone it is UTC.")
    order: str = Field(
        "-version", description="`version`, `created` or `metrics.NAME`; `-` first: the greatest first."
    )
    limit: Limit = 100
    cursor: Cursor = ""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Registry.search_versions`."""
        given = self.model_dump(exclude={"state", "metric", "tag"})
        return {**given, "states": self.state, "metrics": self.metric, "tags": tags_of(self.tag)}


class EventQuery(Request):
    """Which events of a model to list."""

    kind: list[str] = Field(
        [], description="Kinds of events, `gate.refused` or `label.*` for instance; none: all."
    )
    version: int | None = Field(None, ge=1, description="Only what is about this version.")
    label: str | None = Field(None, description="Only what is about this label.")
    limit: Limit = 100
    before: int | None = Field(None, ge=1, description="Only events with lower ids than this one.")


class VerifyQuery(Request):
    """What to verify."""

    version: int | None = Field(None, ge=1, description="This version only; left out: all that are ready.")


class WebhookQuery(Request):
    """Which webhooks to list."""

    model: str | None = Field(None, description="Only those that hear of this model.")


class DeliveryQuery(Request):
    """Which deliveries of a webhook to list."""

    state: str | None = Field(None, description="`pending`, `delivered`, `given_up` or `dropped`.")
    limit: Limit = 100
    before: int | None = Field(None, ge=1, description="Only deliveries with lower ids than this one.")


class HistoryQuery(Request):
    """Which moves of a model's labels to list."""

    label: str | None = Field(None, description="Only the moves of this label.")
    version: int | None = Field(None, ge=1, description="Only moves to this version or away from it.")
    limit: Limit = 100
    before: int | None = Field(None, ge=1, description="Only moves with lower ids than this one.")


def tags_of(texts: Sequence[str]) -> dict[str, str | None]:
    """Return the tags that texts such as `team=search` and `team` ask for."""
    pairs = (text.partition("=") for text in texts)
    return {key: value if sign else None for key, sign, value in pairs}
