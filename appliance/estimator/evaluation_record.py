"""What an evaluator has done in a model_dir: the last evaluation and the exports, kept over restarts."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tensorflow as tf

from appliance.estimator.json_state import read_json, write_json

RECORD_FILE = "evaluated.json"
"""In the folder of the evaluation (`<model_dir>/eval`)."""


@dataclass(frozen=True)
class Export:
    """One export: of which exporter, where, and of which checkpoint with which metrics."""

    name: str
    path: str
    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Offer:
    """What an exporter answered to the last evaluation: the export's path, or None where it declined."""

    path: str | None
    final: bool
    """Whether it was told that this is the last checkpoint of the training."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one checkpoint, and what the exporters made of it."""

    checkpoint: str
    """Base name of the checkpoint."""
    step: int
    fingerprint: str
    metrics: Mapping[str, Any]
    offers: Mapping[str, Offer]

    def exports_due(self, exporters: Sequence[str], final: bool) -> list[str]:
        """Return the names of the exporters still to be asked about this evaluation.

        Each is asked once; and once more when the checkpoint turns out to be the last one, unless it has
        exported this very checkpoint already.
        """
        return [name for name in exporters if self._due(self.offers.get(name), final)]

    @staticmethod
    def _due(offer: Offer | None, final: bool) -> bool:
        return offer is None or (final and not offer.final and offer.path is None)


@dataclass(frozen=True)
class EvaluationRecord:
    """The last evaluation, and the exports that are still there, oldest first."""

    last: Evaluation | None = None
    exports: tuple[Export, ...] = ()

    def evaluated(self, evaluation: Evaluation) -> "EvaluationRecord":
        """Return the record after a further evaluation."""
        return replace(self, last=evaluation)

    def answered(self, name: str, path: str | None, final: bool) -> "EvaluationRecord":
        """Return the record after an exporter's answer to the last evaluation."""
        if self.last is None:
            raise ValueError(f"Cannot record an export of {name!r}: nothing has been evaluated yet.")
        last = replace(self.last, offers={**self.last.offers, name: Offer(path, final)})
        made = (Export(name, path, last.step, last.metrics),) if path is not None else ()
        return EvaluationRecord(last, (*self.exports, *made))

    def without_lost_exports(self) -> "EvaluationRecord":
        """Return the record without the exports that have been deleted since."""
        return replace(self, exports=tuple(e for e in self.exports if tf.io.gfile.isdir(e.path)))


def load_record(eval_dir: str, export_base: str) -> EvaluationRecord:
    """Return what has been recorded in the folder of an evaluation; empty if nothing has.

    Export paths are kept relative to `export_base`, so that a moved model_dir keeps its record.
    """
    content = read_json(os.path.join(eval_dir, RECORD_FILE))
    if content is None:
        return EvaluationRecord()
    exports = tuple(Export(**_moved(e, os.path.join, export_base)) for e in content["exports"])
    last = content["last"]
    if last is None:
        return EvaluationRecord(None, exports)
    offers = {name: Offer(**_moved(o, os.path.join, export_base)) for name, o in last["offers"].items()}
    return EvaluationRecord(Evaluation(**{**last, "offers": offers}), exports)


def save_record(record: EvaluationRecord, eval_dir: str, export_base: str) -> None:
    """Write the record into the folder of an evaluation, whole."""
    exports = [_moved(asdict(export), _relative, export_base) for export in record.exports]
    last = None if record.last is None else asdict(record.last)
    if last is not None:
        last["offers"] = {name: _moved(o, _relative, export_base) for name, o in last["offers"].items()}
    write_json(os.path.join(eval_dir, RECORD_FILE), {"last": last, "exports": exports})


def _moved(fields: Mapping[str, Any], move: Callable[[str, str], str], export_base: str) -> dict[str, Any]:
    """Return the fields with the path, if there is one, made relative to `export_base` or absolute again."""
    path = fields["path"]
    return {**fields, "path": None if path is None else move(export_base, path)}


def _relative(export_base: str, path: str) -> str:
    return os.path.relpath(path, export_base)
