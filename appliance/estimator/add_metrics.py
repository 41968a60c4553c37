"""Adding metrics to a model that is already made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.estimator.arguments import argument_names, call_with_known
from appliance.estimator.estimator import Estimator
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys

_ARGUMENTS = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """Return an Estimator whose evaluation has further metrics (`tf.estimator.add_metrics`).

    Args:
        estimator: the Estimator; it is left as it is.
        metric_fn: takes, by name, any of `features`, `labels`, `predictions` and `config`; returns metrics by
            name, each a Keras metric or a (value, update operation) pair; they replace those of that name.

    Returns:
        A new Estimator with the same model_dir, config and warm start.

    Raises:
        ValueError: `metric_fn` takes another argument.
    """
    unknown = set(argument_names(metric_fn)) - set(_ARGUMENTS)
    if unknown:
        raise ValueError(
            f"metric_fn may take the arguments {_ARGUMENTS}. Received: {metric_fn} with {sorted(unknown)}."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        known = dict(zip(_ARGUMENTS, (features, labels, spec.predictions, config), strict=True))
        added = call_with_known(metric_fn, optional=known)
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **added})

    return Estimator(
        model_fn=model_fn,
        model_dir=estimator.model_dir,
        config=estimator.config,
        warm_start_from=estimator._warm_start,
    )
