"""The registry's operations that search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from registry import searching, versions
from registry.conditions import Condition
from registry.listings import ModelSummary, Page, VersionSummary
from registry.operations import Operations
from registry.records import Model
from registry.values import UNKNOWN_ACTOR, check_actor, check_text, plain_strings


class SearchOperations(Operations):
    """Lists with filters, orders and pages; and the tags that models are found by."""

    def search_models(
        self,
        name: str = "",
        *,
        tags: Mapping[str, str | None] | None = None,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[ModelSummary]:
        """Return models by name, a page at a time.

        Args:
            name: a pattern with `*` and `?`, as in `flights-*`; empty: all.
            tags: the model must have these, None standing for any value.
            limit: the length of a page, 1 to 1000.
            cursor: `next_cursor` of the page before.

        Raises:
            InvalidInput: a limit or cursor that cannot be.
        """
        searching.check_limit(limit)
        check_text(name, "the pattern")
        wanted = dict(tags or {})
        return self._read(lambda session: searching.search_models(session, name, wanted, limit, cursor))

    def model(self, name: str) -> ModelSummary:
        """Return one model. Raises ModelNotFound."""
        return self._read(
            lambda session: searching.summarize(session, [versions.find_model(session, name)])[0]
        )

    def search_versions(
        self,
        model: str,
        *,
        states: Sequence[str] = (),
        metrics: Sequence[str] = (),
        tags: Mapping[str, str | None] | None = None,
        job: str | None = None,
        label: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        order: str = searching.DEFAULT_ORDER,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[VersionSummary]:
        """Return the versions of a model that meet everything given, a page at a time.

        Args:
            model: the model.
            states: any of `pending`, `ready`, `failed`, `deleted`; none given: all but `deleted`.
            metrics: conditions such as `auc > 0.7`; a version without that metric, or with nan, meets none.
            tags: key to value, None standing for any value.
            job: the id of the job that made it.
            label: the label it is under now.
            created_from: not before this moment; without a zone it is taken as UTC.
            created_before: before this moment.
            order: `version`, `created` or `metrics.NAME`, `-` before it for the greatest first. By a metric
                only those versions are listed that have it as a number.
            limit: the length of a page, 1 to 1000.
            cursor: `next_cursor` of the page before, with the same order.

        Raises:
            ModelNotFound: there is no such model.
            InvalidInput: a condition, state, order, limit or cursor that cannot be read.
        """
        wanted = searching.VersionFilter(
            states=searching.check_states(states),
            metrics=tuple(Condition.parse(text) for text in metrics),
            tags=dict(tags or {}),
            job=job,
            label=label,
            created_from=searching.in_utc(created_from),
            created_before=searching.in_utc(created_before),
        )
        by, _ = searching.Order.parse(order), searching.check_limit(limit)

        def work(session: Session) -> Page[VersionSummary]:
            versions.find_model(session, model)
            return searching.search_versions(session, self._store, model, wanted, by, limit, cursor)

        return self._read(work)

    def describe_model(
        self,
        model: str,
        *,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        actor: str = UNKNOWN_ACTOR,
    ) -> Model:
        """Replace the tags or the description of a model, and return it.

        Raises:
            ModelNotFound: there is no such model.
            InvalidInput: a tag is no string.
        """
        check_text(description or "", "description")
        check_actor(actor)
        new_tags = None if tags is None else plain_strings(tags, "tags")
        row = self._write(
            lambda session: versions.describe_model(session, model, new_tags, description, actor)
        )
        return versions.to_model(row)
