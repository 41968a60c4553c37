"""What the client may ask of the registry: models, versions, labels, gates, their history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from appliance.card import render_card
from appliance.client.errors import InvalidRequest
from appliance.client.results import (
    Approval,
    Gate,
    GateReport,
    HistoryEvent,
    Model,
    Promotion,
    Version,
    parse,
)
from appliance.client.transport import Sender, segment

API = "/api/v1"
_PAGE = 500
"""How many a list is asked for at once."""


class RegistryCalls:
    """The calls of a client that are about the registry."""

    _transport: Sender
    _timeout_seconds: float

    def models(self, name: str = "", *, tags: Sequence[str] = (), limit: int | None = None) -> list[Model]:
        """Return the models with their labels, by name.

        Args:
            name: a pattern with `*` and `?`, `flights-*` for instance; empty: all.
            tags: `key=value`, or `key` for any value.
            limit: how many at most; None: all.
        """
        query = {"name": name, "tag": list(tags)}
        return [parse(Model, entry) for entry in self._list(f"{API}/models", "models", query, limit)]

    def model(self, model: str) -> Model:
        """Return one model with its labels."""
        return parse(Model, self._transport.get(_model_path(model)))

    def labels(self, model: str) -> Mapping[str, int]:
        """Return the version behind each label."""
        return self._transport.get(_model_path(model) + "/labels")["labels"]

    def versions(
        self,
        model: str,
        *,
        states: Sequence[str] = (),
        metrics: Sequence[str] = (),
        tags: Sequence[str] = (),
        job: str | None = None,
        label: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        order: str = "-version",
        limit: int | None = None,
    ) -> list[Version]:
        """Return the versions of a model that meet everything given, newest first unless told otherwise.

        Args:
            model: the model.
            states: any of `pending`, `ready`, `failed`, `deleted`; none given: all but `deleted`.
            metrics: conditions such as `auc > 0.7`.
            tags: `key=value`, or `key` for any value.
            job: the id of the job that made it.
            label: the label it is under now.
            created_from: not before this moment.
            created_before: before this moment.
            order: `version`, `created` or `metrics.NAME`; `-` before it: the greatest first.
            limit: how many at most; None: all.
        """
        query = {
            "state": list(states),
            "metric": list(metrics),
            "tag": list(tags),
            "job": job,
            "label": label,
            "created_from": None if created_from is None else created_from.isoformat(),
            "created_before": None if created_before is None else created_before.isoformat(),
            "order": order,
        }
        found = self._list(_model_path(model) + "/versions", "versions", query, limit)
        return [parse(Version, entry) for entry in found]

    def _list(
        self, path: str, what: str, query: Mapping[str, Any], limit: int | None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield what a list has, page by page, `limit` at most."""
        cursor, left = "", limit
        while left is None or left > 0:
            length = _PAGE if left is None else min(left, _PAGE)
            page = self._transport.get(path, **query, limit=length, cursor=cursor)
            yield from page[what]
            cursor, left = page.get("next_cursor"), None if left is None else left - len(page[what])
            if not cursor:
                return

    def describe_model(
        self, model: str, *, tags: Mapping[str, str] | None = None, description: str | None = None
    ) -> Model:
        """Replace the tags or the description of a model, and return it."""
        body = _given(tags=tags, description=description)
        return parse(Model, self._transport.send("PATCH", _model_path(model), body))

    def describe_version(
        self,
        model: str,
        version: int,
        *,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Version:
        """Replace the tags or the description of a version, and return it."""
        path = f"{_model_path(model)}/versions/{segment(version)}"
        body = _given(tags=tags, description=description)
        return parse(Version, self._transport.send("PATCH", path, body))

    def version(self, model: str, version: int | str) -> Version:
        """Return a version, by number or by label."""
        return parse(Version, self._transport.get(f"{_model_path(model)}/versions/{segment(version)}"))

    def promote(
        self,
        model: str,
        version: int,
        *,
        label: str = "production",
        expect: int | None = None,
        reason: str = "",
        force: bool = False,
        wait: float = 60.0,
    ) -> Promotion:
        """Move a label to a version, and wait until that version serves it.

        Args:
            model: the model.
            version: the version's number.
            label: the label.
            expect: refuse unless the label is on this version now (0: on none).
            reason: why, for the history.
            force: pass over the gate; recorded.
            wait: for how long to wait, in seconds; 0: not at all.

        Raises:
            GateRefused: the gate of the label refused the version.
            LoadFailed: the version would not load; the label is where it was.
        """
        body = {"version": version, "expect": expect, "reason": reason, "force": force, "wait_seconds": wait}
        return self._move("PUT", model, segment(label), body, wait)

    def rollback(
        self,
        model: str,
        *,
        label: str = "production",
        to: int | None = None,
        expect: int | None = None,
        reason: str = "",
        wait: float = 60.0,
    ) -> Promotion:
        """Move a label back to the version it was on before, or further back `to` one it was on.

        The arguments are those of `promote`.
        """
        body = {"to": to, "expect": expect, "reason": reason, "wait_seconds": wait}
        return self._move("POST", model, f"{segment(label)}/rollback", body, wait)

    def _move(self, method: str, model: str, where: str, body: Mapping[str, Any], wait: float) -> Promotion:
        path = f"{_model_path(model)}/labels/{where}"
        return parse(
            Promotion, self._transport.send(method, path, body, timeout_seconds=wait + self._timeout_seconds)
        )

    def remove_label(
        self, model: str, label: str, *, expect: int | None = None, reason: str = ""
    ) -> Promotion:
        """Take a label away; `rollback` brings it back. The arguments are those of `promote`."""
        path = f"{_model_path(model)}/labels/{segment(label)}/remove"
        return parse(Promotion, self._transport.send("POST", path, {"expect": expect, "reason": reason}))

    def history(
        self,
        model: str,
        *,
        label: str | None = None,
        version: int | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[Promotion]:
        """Return the moves of a model's labels, newest first.

        Args:
            model: the model.
            label: only the moves of this label.
            version: only moves to this version or away from it.
            limit: how many at most; None: all.
            before: only moves with lower ids.
        """
        path, found = _model_path(model) + "/history", list[Promotion]()
        while limit is None or len(found) < limit:
            length = _PAGE if limit is None else min(limit - len(found), _PAGE)
            page = self._transport.get(path, label=label, version=version, limit=length, before=before)
            found += [parse(Promotion, entry) for entry in page["promotions"]]
            before = page["next_before"]
            if before is None:
                break
        return found

    def model_events(
        self,
        model: str,
        *,
        kinds: Sequence[str] = (),
        version: int | None = None,
        label: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[HistoryEvent]:
        """Return the changes of a model and of all that belongs to it, newest first.

        Args:
            model: the model.
            kinds: kinds of events, `gate.refused` for instance; none: all.
            version: only what is about this version.
            label: only what is about this label.
            limit: how many at most, 1000 at most.
            before: only events with lower ids.
        """
        page = self._transport.get(
            _model_path(model) + "/events",
            kind=list(kinds),
            version=version,
            label=label,
            limit=limit,
            before=before,
        )
        return [parse(HistoryEvent, entry) for entry in page["events"]]

    def lineage(self, model: str, version: int | str) -> Mapping[str, Any]:
        """Return where a version, by number or label, comes from and what became of it.

        Returns:
            `version`, `job`, `curves` (for each metric of training and evaluation its pairs of step and
            value, nan and infinities by name), `gate_reports` by label, `moves`, `approvals`.
        """
        return self._transport.get(f"{_model_path(model)}/versions/{segment(version)}/lineage")

    def card(self, model: str, version: int | str) -> str:
        """Return the model card of a version, by number or label, in Markdown."""
        return render_card(self.lineage(model, version))

    def approve(self, model: str, version: int, *, label: str = "production", comment: str = "") -> Approval:
        """Say that a version may go under a label, for gates that ask for an approval by another."""
        path = f"{_model_path(model)}/versions/{segment(version)}/approvals"
        return parse(Approval, self._transport.send("POST", path, {"label": label, "comment": comment}))

    def gate(self, model: str, *, label: str = "production") -> Gate:
        """Return the gate of a label."""
        return parse(Gate, self._transport.get(f"{_model_path(model)}/gates/{segment(label)}"))

    def set_gate(self, model: str, rules: Sequence[str], *, label: str = "production") -> Gate:
        """Set the rules (`auc >= 0.69`) a version must meet before `label` moves to it; none: no gate.

        Raises:
            InvalidRequest: a rule is none; or the rules are one text.
        """
        if isinstance(rules, str):
            raise InvalidRequest(
                f"Cannot set the gate. Give the rules as a list of strings. Received: {rules!r}.",
                "invalid_argument",
            )
        path = f"{_model_path(model)}/gates/{segment(label)}"
        return parse(Gate, self._transport.send("PUT", path, {"rules": list(rules)}))

    def check_gate(self, model: str, version: int, *, label: str = "production") -> GateReport:
        """Return what the gate of `label` says about a version, without moving anything."""
        path = f"{_model_path(model)}/gates/{segment(label)}/report"
        return parse(GateReport, self._transport.get(path, version=version))

    def delete_version(self, model: str, version: int) -> None:
        """Delete a version that no label needs."""
        self._transport.send("DELETE", f"{_model_path(model)}/versions/{segment(version)}")


def _given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }


def _model_path(model: str) -> str:
    return f"{API}/models/{segment(model)}"
