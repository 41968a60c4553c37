"""The registry's operations on gates and approvals, and the history of everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from registry import events, gatekeeping, versions
from registry.gates import parse_rules
from registry.operations import Operations
from registry.predictions import PredictionsMissing, Predictor
from registry.records import Approval, Event, Gate, GateCheck, GateReport
from registry.values import check_actor, check_label_name, check_text

T = TypeVar("T")


class GateOperations(Operations):
    """Gates, approvals, events."""

    def set_gate(self, model: str, label: str, rules: Sequence[str], actor: str) -> Gate:
        """Declare what a version must meet before the label may move to it. No rules: anything may pass.

        Each call makes a new revision; the earlier ones stay readable.

        Raises:
            InvalidRule: a rule cannot be read; see `registry.gates` for how they are written.
            ModelNotFound: there is no such model.
        """
        check_label_name(label)
        check_actor(actor)
        texts = tuple(check_text(rule.text, "the rule") for rule in parse_rules(rules))
        return self._write(lambda session: gatekeeping.set_gate(session, model, label, texts, actor))

    def gate(self, model: str, label: str) -> Gate:
        """Return the gate of a label; its rules are empty when none were set. Raises ModelNotFound."""
        return self._read(lambda session: gatekeeping.find_gate(session, model, label))

    def gate_revisions(self, model: str, label: str) -> list[Gate]:
        """Return every gate that the label has had, newest first. Raises ModelNotFound."""
        return self._read(lambda session: gatekeeping.gate_revisions(session, model, label))

    def check_gate(
        self,
        model: str,
        version: int,
        label: str,
        *,
        actor: str = "",
        predictor: Predictor | None = None,
    ) -> GateReport:
        """Return what the gate of a label says about a version, without moving anything.

        Args:
            model: the model.
            version: the version.
            label: the label.
            actor: who would promote; left out, an approval by anyone will do.
            predictor: runs the version, for rules that ask for a prediction; without it they fail.

        Raises:
            ModelNotFound, VersionNotFound: as they say.
        """

        def ask(predictions: Mapping[str, GateCheck]) -> GateReport:
            def work(session: Session) -> GateReport:
                row = versions.find_version(session, model, version)
                return gatekeeping.check_gate(session, self._store, row, label, actor, predictions)

            return self._read(work)

        return with_predictions(ask, predictor)

    def approve(self, model: str, version: int, label: str, actor: str, comment: str = "") -> Approval:
        """Say that a version may go under a label, for gates with the rule `approved by another`.

        Saying it again changes nothing.

        Raises:
            ModelNotFound, VersionNotFound: as they say.
            InvalidInput: a bad label name, or no actor.
        """
        check_label_name(label)
        check_actor(actor)
        return self._write(
            lambda session: gatekeeping.approve(session, model, version, label, actor, comment)
        )

    def approvals(self, model: str, version: int, label: str) -> list[Approval]:
        """Return who has approved a version for a label, oldest first. Raises VersionNotFound."""

        def work(session: Session) -> list[Approval]:
            versions.find_version(session, model, version)
            return gatekeeping.find_approvals(session, model, version, label)

        return self._read(work)

    def events(
        self,
        model: str,
        *,
        kinds: Sequence[str] = (),
        version: int | None = None,
        label: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Return the changes of a model, newest first; `registry.events` lists their kinds.

        Args:
            model: the model.
            kinds: only these, such as `["gate.refused", "label.*"]`.
            version: only those about this version.
            label: only those about this label.
            before: only those with a smaller id, to read on where a page has ended.
            limit: at most so many.

        Raises:
            ModelNotFound: there is no such model.
            InvalidInput: a kind that there is not, or no name of a label.
        """
        check_label = check_label_name(label) if label is not None else None
        found_kinds = events.kinds_like(kinds)

        def work(session: Session) -> list[Event]:
            versions.find_model(session, model)
            rows = events.find(
                session,
                model,
                kinds=found_kinds,
                version=version,
                label=check_label,
                before=before,
                limit=limit,
            )
            return [events.to_event(row) for row in rows]

        return self._read(work)


def with_predictions(ask: Callable[[Mapping[str, GateCheck]], T], predictor: Predictor | None) -> T:
    """Return what `ask` returns once it has the predictions it needs.

    It is first asked without any, for most gates need none. What is missing is made between two of its
    transactions; should the gate change meanwhile, what is new in it is made too.
    """
    made: dict[str, GateCheck] = {}
    while True:
        try:
            return ask(made)
        except PredictionsMissing as missing:
            made |= {rule.text: rule.predict(missing.version, predictor) for rule in missing.rules}
