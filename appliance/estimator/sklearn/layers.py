"""The trained models in numpy: a prediction needs neither a graph nor a session, and pickles stay small.

Computing in float64, they give each row the same result whatever rows are beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

_ROWS = 8192
"""How many rows are computed at once, to bound the memory for the hidden layers."""

ACTIVATIONS: Mapping[str, tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "elu": (tf.nn.elu, lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0)))),
    "linear": (tf.identity, lambda values: values),
    "relu": (tf.nn.relu, lambda values: np.maximum(values, 0)),
    "sigmoid": (tf.nn.sigmoid, special.expit),
    "tanh": (tf.nn.tanh, np.tanh),
}
"""Activation functions by name: in TensorFlow and in numpy."""


def network_logits(variables: Mapping[str, np.ndarray], activation: str, features: Any) -> np.ndarray:
    """Return the logits of a feed-forward network, float64 `[rows, units]`.

    Args:
        variables: by their names in a checkpoint of `DNNClassifier` or `DNNRegressor`.
        activation: one of `ACTIVATIONS`.
        features: `[rows, features]`, an array or a CSR matrix.
    """
    layers = sum(name.startswith("dnn/hiddenlayer_") and name.endswith("/kernel") for name in variables)
    names = [*(f"dnn/hiddenlayer_{i}" for i in range(layers)), "dnn/logits"]
    weights = [(_float64(variables[f"{name}/kernel"]), _float64(variables[f"{name}/bias"])) for name in names]
    function = ACTIVATIONS[activation][1]

    def logits(values: np.ndarray) -> np.ndarray:
        for kernel, bias in weights[:-1]:
            values = function(values @ kernel + bias)
        kernel, bias = weights[-1]
        return values @ kernel + bias

    return _in_pieces(logits, features)


def linear_logits(variables: Mapping[str, np.ndarray], features: Any) -> np.ndarray:
    """Return the logits of a linear model of one column `x`, float64 `[rows, units]`.

    Args:
        variables: by their names in a checkpoint of `LinearClassifier` or `LinearRegressor`.
        features: `[rows, features]`, an array or a CSR matrix.
    """
    kernel = _float64(variables["linear/linear_model/x/weights"])
    bias = _float64(variables["linear/linear_model/bias_weights"])
    return _in_pieces(lambda values: values @ kernel + bias, features)


def _in_pieces(function: Callable[[Any], np.ndarray], features: Any) -> np.ndarray:
    starts = range(0, features.shape[0], _ROWS)
    return np.concatenate([function(_float64(features[start : start + _ROWS])) for start in starts])


def _float64(array: Any) -> Any:
    return array.astype(np.float64)


def check_sizes(hidden_units: Any) -> list[int]:
    """Return the sizes of the hidden layers as a list of ints; one number is one layer.

    Raises:
        ValueError: they are not whole numbers of at least one.
    """
    sizes = [hidden_units] if np.ndim(hidden_units) == 0 else list(hidden_units)
    if any(not isinstance(size, int | np.integer) or size < 1 for size in sizes):
        raise ValueError(f"hidden_units must be whole numbers of at least 1; got {hidden_units!r}.")
    return [int(size) for size in sizes]
