"""What to export after an evaluation: the latest model, the final one, or the best so far."""

import abc
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import tensorflow as tf

from appliance.estimator.json_state import plain_metrics, read_json, write_json
from appliance.estimator.summaries import scalar_events

log = logging.getLogger(__name__)

CompareFn = Callable[..., bool]
"""`compare_fn(best_eval_result=..., current_eval_result=...)`: is the current result the better one?"""

BEST_FILE = "best.json"
"""Beside the exports of a `BestExporter`: the metrics of the best of them."""


class Exporter(abc.ABC):
    """A kind of export, asked after every evaluation whether to write one (`tf.estimator.Exporter`)."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The folder under `<model_dir>/export` that this exporter writes to: unique and not empty."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | str | None:
        """Export the checkpoint, or decline.

        Args:
            estimator: the Estimator that was evaluated.
            export_path: where to write; a folder of this exporter alone.
            checkpoint_path: the checkpoint that was evaluated.
            eval_result: what `Estimator.evaluate` returned for it.
            is_the_final_export: True for the last checkpoint of a training.

        Returns:
            The folder that was written, or None where this checkpoint is not exported.
        """


class _SavedModelExporter(Exporter):
    """Writes a SavedModel for serving, and keeps the newest `exports_to_keep` of them."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(
                f"exports_to_keep must be positive, or None to keep all. Received: {exports_to_keep!r}."
            )
        self._name = name
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def _write(self, estimator: Any, export_path: str, checkpoint_path: str) -> bytes | str:
        """Export the checkpoint whatever its metrics, then remove the exports that are too many."""
        path = estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        collect_old_exports(export_path, self._exports_to_keep)
        return cast(bytes | str, path)


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation and keeps the newest exports (`tf.estimator.LatestExporter`)."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Make the exporter.

        Args:
            name: folder under `<model_dir>/export`, unique among the exporters of an evaluation.
            serving_input_receiver_fn: makes the `ServingInputReceiver` of the exported graph.
            assets_extra: destination under `assets.extra` to the file that is copied there.
            as_text: write the SavedModel as text.
            exports_to_keep: how many of the newest exports stay; None keeps all.

        Raises:
            ValueError: `exports_to_keep` is not positive.
        """
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | str | None:
        """Export, always."""
        return self._write(estimator, export_path, checkpoint_path)


class FinalExporter(_SavedModelExporter):
    """Exports once, at the end of training (`tf.estimator.FinalExporter`)."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        """Make the exporter; the arguments are those of `LatestExporter`."""
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | str | None:
        """Export if this is the last checkpoint of the training."""
        return self._write(estimator, export_path, checkpoint_path) if is_the_final_export else None


def metric_smaller(key: str) -> CompareFn:
    """Return a `compare_fn` for which a lower value of the metric is better."""

    def compare(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
        best, current = _metric(best_eval_result, key), _metric(current_eval_result, key)
        return bool(current < best or best != best)  # Anything beats a NaN.

    return compare


def metric_larger(key: str) -> CompareFn:
    """Return a `compare_fn` for which a higher value of the metric is better."""

    def compare(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
        best, current = _metric(best_eval_result, key), _metric(current_eval_result, key)
        return bool(current > best or best != best)  # Anything beats a NaN.

    return compare


loss_smaller = metric_smaller("loss")
"""The default `compare_fn`: the lower loss is better."""


def _metric(eval_result: Mapping[str, Any], key: str) -> Any:
    if not eval_result or key not in eval_result:
        raise ValueError(
            f"Cannot compare evaluations by {key!r}: the result has {sorted(eval_result or ())}. "
            "Compare by a metric that the evaluation computes."
        )
    return eval_result[key]


class BestExporter(_SavedModelExporter):
    """Exports when the new evaluation beats the best so far (`tf.estimator.BestExporter`).

    The best so far is kept in `best.json` beside the exports, so it outlives any restart. Where that file is
    missing but exports are there (a model_dir that tf.estimator wrote), it is recovered from the event files.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: CompareFn = loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Make the exporter; the arguments not named here are those of `LatestExporter`.

        Args:
            event_file_pattern: files under `model_dir` to recover the best result from; None: do not look.
            compare_fn: called with `best_eval_result` and `current_eval_result`; True if the current one is
                better.

        Raises:
            ValueError: `compare_fn` is None or does not take these two arguments by name, or
                `exports_to_keep` is not positive.
        """
        _check_compare_fn(compare_fn)
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._event_file_pattern = event_file_pattern
        self._compare_fn = compare_fn

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | str | None:
        """Export if the result is better than the best so far, or the first."""
        best = self._best_so_far(estimator.model_dir, export_path, eval_result)
        if best is not None and not self._compare_fn(best_eval_result=best, current_eval_result=eval_result):
            return None
        path = self._write(estimator, export_path, checkpoint_path)
        # After the export: a crash between the two exports this checkpoint again rather than never.
        write_json(
            os.path.join(tf.compat.as_str_any(export_path), BEST_FILE),
            {"metrics": plain_metrics(eval_result), "export": _base_name(path)},
        )
        return path

    def _best_so_far(
        self, model_dir: str, export_path: str, eval_result: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        recorded = read_json(os.path.join(tf.compat.as_str_any(export_path), BEST_FILE))
        if recorded is not None:
            return cast(Mapping[str, Any], recorded["metrics"])
        if not self._event_file_pattern or not export_directories(export_path):
            return None
        pattern = os.path.join(tf.compat.as_str_any(model_dir), self._event_file_pattern)
        return self._best_of_events(pattern, skip_step=eval_result.get("global_step"))

    def _best_of_events(self, pattern: str, skip_step: int | None) -> Mapping[str, Any] | None:
        """Return the best result in the files; the one at `skip_step` is the result being judged."""
        best: dict[str, Any] | None = None
        for step, result in scalar_events(pattern):
            if step == skip_step:
                continue
            if best is None or self._compare_fn(best_eval_result=best, current_eval_result=result):
                best = result
        return best


def _check_compare_fn(compare_fn: CompareFn | None) -> None:
    if compare_fn is None:
        raise ValueError("compare_fn must not be None.")
    required = {"best_eval_result", "current_eval_result"}
    parameters = inspect.signature(compare_fn).parameters
    others = {name for name, p in parameters.items() if p.default is p.empty and name not in required}
    if not required <= parameters.keys() or others:
        raise ValueError(
            "compare_fn must take the arguments best_eval_result and current_eval_result, and need no other. "
            f"Received: {compare_fn} with the arguments {list(parameters)}."
        )


def export_directories(export_path: bytes | str) -> list[str]:
    """Return the exports in the folder, oldest first: the children named by ten digits, a time in seconds."""
    base = tf.compat.as_str_any(export_path)
    if not tf.io.gfile.isdir(base):
        return []
    # Object stores list folders with a trailing slash.
    names = [tf.compat.as_str_any(name).rstrip("/") for name in tf.io.gfile.listdir(base)]
    return [os.path.join(base, name) for name in sorted(names) if len(name) == 10 and name.isdigit()]


def collect_old_exports(export_path: bytes | str, exports_to_keep: int | None) -> None:
    """Delete all but the newest `exports_to_keep` exports in the folder; None deletes nothing."""
    if exports_to_keep is None:
        return
    for path in export_directories(export_path)[:-exports_to_keep]:
        try:
            tf.io.gfile.rmtree(path)
        except tf.errors.NotFoundError as error:
            log.warning("old_export_already_gone", extra={"path": path, "reason": str(error)})


def validate_exporters(exporters: Exporter | Iterable[Exporter] | None) -> tuple[Exporter, ...]:
    """Return the exporters as a tuple.

    Raises:
        TypeError: something in it is not an `Exporter`.
        ValueError: a name is empty, not a string, or occurs twice.
    """
    if not exporters:
        return ()
    items: Any = (exporters,) if isinstance(exporters, Exporter) else exporters
    items = tuple(items) if isinstance(items, Iterable) else (items,)
    if not all(isinstance(exporter, Exporter) for exporter in items):
        raise TypeError(
            f"exporters must be an Exporter, an iterable of Exporters, or None. Received: {exporters!r}."
        )
    names = [exporter.name for exporter in items]
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"An exporter must have a name that is a string and not empty. Received: {names}.")
    if len(set(names)) < len(names):
        raise ValueError(f"exporters must have unique names. Received: {names}.")
    return items


def _base_name(path: bytes | str) -> str:
    return os.path.basename(tf.compat.as_str_any(path).rstrip("/"))
