"""TF.Learn's export strategies, and how they take part where exporters do."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from appliance.estimator.arguments import argument_names, call_with_known
from appliance.estimator.exporters import (
    BestExporter,
    CompareFn,
    Exporter,
    LatestExporter,
    loss_smaller,
    validate_exporters,
)


class ExportStrategy(NamedTuple):
    """A named way to export (`tf.contrib.learn.ExportStrategy`).

    `export_fn(estimator, export_dir_base)` writes an export and returns its folder. It may also take, by
    name, `checkpoint_path` and `eval_result`; one that takes `eval_result` judges for itself which evaluation
    is worth an export, and returns None for the others.
    """

    name: str
    export_fn: Callable[..., bytes | str | None]

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None = None,
        eval_result: Mapping[str, Any] | None = None,
    ) -> bytes | str | None:
        """Call `export_fn` with those of the arguments that it takes."""
        return call_with_known(
            self.export_fn,
            estimator,
            export_path,
            optional={"checkpoint_path": checkpoint_path, "eval_result": eval_result},
        )

    @property
    def judges(self) -> bool:
        """Whether the strategy decides by the result of the evaluation."""
        return "eval_result" in argument_names(self.export_fn)


def make_export_strategy(
    serving_input_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    exports_to_keep: int | None = 5,
    *,
    name: str = "Servo",
    best: bool = False,
    compare_fn: CompareFn = loss_smaller,
) -> ExportStrategy:
    """Return a strategy that exports SavedModels for serving (`tf.contrib.learn.make_export_strategy`).

    Args:
        serving_input_fn: makes the `ServingInputReceiver` of the exported graph.
        assets_extra: destination under `assets.extra` to the file that is copied there.
        as_text: write the SavedModel as text.
        exports_to_keep: how many of the newest exports stay; None keeps all.
        name: folder under `<model_dir>/export`.
        best: export only an evaluation that beats all before it, as `BestExporter` does.
        compare_fn: with `best`: called with `best_eval_result` and `current_eval_result`; True if the current
            one is better. By default the lower loss is; `metric_larger("auc")` makes another.

    Raises:
        ValueError: `exports_to_keep` is not positive, or `compare_fn` takes other arguments.
    """
    if not best:
        latest = LatestExporter(name, serving_input_fn, assets_extra, as_text, exports_to_keep)

        def export_latest(estimator: Any, export_dir_base: str, checkpoint_path: str) -> bytes | str | None:
            return latest.export(estimator, export_dir_base, checkpoint_path, {}, True)

        return ExportStrategy(name, export_latest)
    exporter = BestExporter(
        name, serving_input_fn, "eval*/*.tfevents.*", compare_fn, assets_extra, as_text, exports_to_keep
    )

    def export_best(
        estimator: Any, export_dir_base: str, checkpoint_path: str, eval_result: Mapping[str, Any]
    ) -> bytes | str | None:
        return exporter.export(estimator, export_dir_base, checkpoint_path, eval_result, True)

    return ExportStrategy(name, export_best)


class StrategyExporter(Exporter):
    """An export strategy in the place of an exporter."""

    def __init__(self, strategy: ExportStrategy, final_only: bool) -> None:
        """Make the exporter; `final_only`: ask a strategy that does not judge after training only."""
        self._strategy = strategy
        self._final_only = final_only and not strategy.judges

    @property
    def name(self) -> str:
        """The name of the strategy."""
        return self._strategy.name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | str | None:
        """Export as the strategy does."""
        if self._final_only and not is_the_final_export:
            return None
        return self._strategy.export(estimator, export_path, checkpoint_path, eval_result)


Strategies = ExportStrategy | Exporter | Iterable[ExportStrategy | Exporter] | None


def as_exporters(strategies: Strategies, *, final_only: bool) -> tuple[Exporter, ...]:
    """Return strategies and exporters, one or many, as exporters.

    Raises:
        TypeError: something in it is neither.
        ValueError: a name is empty, not a string, or occurs twice.
    """
    if strategies is None:
        return ()
    # A strategy is a tuple, so it must be told from an iterable of them first.
    single = isinstance(strategies, ExportStrategy | Exporter)
    items: Iterable[Any] = (strategies,) if single else strategies  # type: ignore[assignment]
    return validate_exporters(
        [StrategyExporter(item, final_only) if isinstance(item, ExportStrategy) else item for item in items]
    )
