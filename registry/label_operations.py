"""The registry's operations on labels and their history."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sqlalchemy.orm import Session

from registry import gates, labels, versions
from registry.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    ArtifactsUnavailable,
    GateRefused,
    VersionNotReady,
)
from registry.gate_operations import with_predictions
from registry.labels import UNSET, Expect
from registry.operations import Operations
from registry.predictions import Predictor
from registry.records import GateCheck, GateReport, Promotion, Version
from registry.tables import PromotionRow, VersionRow
from registry.values import check_actor, check_label_name

log = logging.getLogger(__name__)


class LabelOperations(Operations):
    """Labels and their history."""

    def labels(self, model: str) -> dict[str, int]:
        """Return the version under each label. Raises ModelNotFound."""

        def work(session: Session) -> dict[str, int]:
            versions.find_model(session, model)
            return labels.of_model(session, model)

        return self._read(work)

    def resolve(self, model: str, label_or_number: str | int) -> Version:
        """Return the ready version that a label or a number stands for.

        Raises:
            ModelNotFound, LabelNotFound, VersionNotFound: as they say.
            VersionNotReady: it is pending, failed or deleted.
        """

        def work(session: Session) -> VersionRow:
            if isinstance(label_or_number, int) or label_or_number.isdecimal():
                row = versions.find_version(session, model, int(label_or_number))
            else:
                row = versions.find_version(
                    session, model, labels.find_label(session, model, label_or_number).version
                )
            if row.state != "ready":
                raise VersionNotReady(model, row.version, row.state, row.error)
            return row

        return versions.to_version(self._read(work), self._store)

    def promote(
        self,
        model: str,
        version: int,
        *,
        label: str = "production",
        expect: Expect = UNSET,
        actor: str,
        reason: str = "",
        force: bool = False,
        predictor: Predictor | None = None,
    ) -> Promotion:
        """Move a label to a version that its gate lets through, and record it. A new label is made.

        When the label is on this version already nothing is done, and the move that brought it there is
        returned.

        Args:
            model: the model.
            version: a ready version of it.
            label: `production`, `canary`, or any name.
            expect: the version the label must be on for the move to happen, or None for a label that is not
                there yet. Not given: wherever it is.
            actor: who does it.
            reason: why.
            force: promote in spite of what the gate says; needs a reason, and is recorded.
            predictor: runs the version, for rules that ask for a prediction; without it they fail.

        Raises:
            ModelNotFound, VersionNotFound: as they say.
            VersionNotReady, ArtifactMissing, ArtifactDamaged: the version cannot be served.
            ArtifactsUnavailable: the store of the files does not answer. A rollback does not mind.
            LabelMoved: the label is not on the expected version.
            GateRefused: carries the report; the refusal is an event of the history.
            InvalidInput: a bad label name, no actor, or force without a reason.
        """
        check_label_name(label)
        check_actor(actor)
        labels.check_reason(force, reason)
        candidate = self._read(lambda session: versions.find_ready(session, model, version))
        versions.check_files(self._store, versions.to_version(candidate, self._store))

        def attempt(predictions: Mapping[str, GateCheck]) -> PromotionRow | GateReport:
            return self._write(
                lambda session: labels.promote(
                    session,
                    self._store,
                    model,
                    version,
                    label=label,
                    expect=expect,
                    actor=actor,
                    reason=reason,
                    force=force,
                    predictions=predictions,
                ),
            )

        outcome = with_predictions(attempt, predictor)
        if isinstance(outcome, GateReport):
            raise GateRefused(outcome, gates.remedy(outcome))
        return _logged(outcome)

    def rollback(
        self,
        model: str,
        *,
        label: str = "production",
        to: int | None = None,
        expect: Expect = UNSET,
        actor: str,
        reason: str = "",
    ) -> Promotion:
        """Move a label back to the version that served before; again, further back. Asks no gate.

        Args:
            model: the model.
            label: the label.
            to: a version that was under this label at some time; afterwards, going further back goes on from
                where the label stood then.
            expect: as for `promote`.
            actor: who does it.
            reason: why.

        Raises:
            RollbackRefused: nothing was there before, `to` never was, or the version cannot be used any more.
            ModelNotFound, VersionNotFound: as they say.
            LabelMoved: the label is not on the expected version.
        """
        check_label_name(label)
        check_actor(actor)
        target = self._read(lambda session: labels.rollback_target(session, model, label, to))
        problems: dict[int, str] = {}

        def attempt(session: Session) -> PromotionRow:
            return labels.roll_back(
                session,
                model,
                label=label,
                to=to,
                expect=expect,
                actor=actor,
                reason=reason,
                problems=problems,
            )

        while True:
            if target is not None:
                problems[target.version] = self._problem_of_files(target)
            try:
                return _logged(self._write(attempt))
            except labels.FilesUnchecked as unchecked:
                # Somebody has moved the label meanwhile, and it would go back to somewhere else.
                target = self._row(model, unchecked.version)

    def _row(self, model: str, version: int) -> VersionRow:
        return self._read(lambda session: versions.find_version(session, model, version))

    def _problem_of_files(self, row: VersionRow) -> str:
        """Return what is wrong with the files of a version; empty when nothing is, or nobody knows."""
        if row.state != "ready":
            return ""  # Then nobody asks for its files.
        try:
            versions.check_files(self._store, versions.to_version(row, self._store))
        except (ArtifactMissing, ArtifactDamaged) as error:
            return error.problem
        except ArtifactsUnavailable as error:
            # The version is most likely still loaded: a store that is away must keep nobody from going back.
            log.warning("files_not_checked", extra={"model": row.model, "error": str(error)})
        return ""

    def undo_promotion(
        self, promotion: int | Promotion, reason: str, *, actor: str = "reconciler"
    ) -> Promotion:
        """Restore what was before a move whose version will not load; recorded as `undo`.

        The label goes back to where it was, or away when it was nowhere. Undoing twice is the same as once.
        An undo can be undone too, which goes further back, not forward again.

        Raises:
            PromotionNotFound: the history has no such entry.
            UndoRefused: the label has moved since.
        """
        check_actor(actor)
        promotion_id = promotion if isinstance(promotion, int) else promotion.id
        return _logged(self._write(lambda session: labels.undo(session, promotion_id, actor, reason)))

    def remove_label(
        self, model: str, label: str, *, expect: Expect = UNSET, actor: str, reason: str = ""
    ) -> Promotion:
        """Take a label away. `rollback` brings it back. Raises LabelNotFound, LabelMoved."""
        check_actor(actor)
        return _logged(
            self._write(lambda session: labels.remove(session, model, label, expect, actor, reason))
        )

    def history(
        self,
        model: str,
        label: str | None = None,
        *,
        version: int | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[Promotion]:
        """Return the moves of the labels, newest first.

        Args:
            model: the model.
            label: only the moves of this label.
            version: only the moves to this version or away from it.
            before: only moves with lower ids.
            after: only moves with higher ids.
            limit: how many at most.

        Raises:
            ModelNotFound: there is no such model.
        """
        rows = self._read(
            lambda session: labels.history(session, model, label, version, before, after, limit)
        )
        return [labels.to_promotion(row) for row in rows]


def _logged(row: PromotionRow) -> Promotion:
    """Return the record of a move, made now or standing already, and leave a line in the log."""
    move = labels.to_promotion(row)
    fields = {"promotion": move.id, "model": move.model, "label": move.label, "action": move.action}
    log.info("label_stands", extra={**fields, "to_version": move.to_version, "actor": move.actor})
    return move
