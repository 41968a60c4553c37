"""Calling functions that make the logits of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from appliance.estimator.arguments import call_with_known


def call_logit_fn(logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any) -> Any:
    """Call `logit_fn(features, mode, params, config)`, of which it may leave out all but `features`.

    Returns:
        a Tensor, or a dict of Tensors by name.

    Raises:
        ValueError: it returned something else.

    Source: `tf.estimator.experimental.call_logit_fn`.
    """
    optional = {"features": features, "mode": mode, "params": params, "config": config}
    logits = call_with_known(logit_fn, optional=optional)
    named = logits if isinstance(logits, dict) else {"logits": logits}
    if not all(isinstance(name, str) and tf.is_tensor(value) for name, value in named.items()):
        raise ValueError(
            "logit_fn should return a Tensor or a dictionary mapping strings to Tensors. "
            f"logit_fn returned: {logits!r}"
        )
    return logits
