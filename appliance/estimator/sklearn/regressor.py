"""The side of the regressors: targets of one or several values."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import _check_sample_weight

from appliance.estimator.heads import Head, RegressionHead
from appliance.estimator.sklearn.base import Model, weighted_rows
from appliance.estimator.sklearn.rows import Rows
from appliance.estimator.sklearn.trainer import WEIGHT


class Regressor(RegressorMixin, MultiOutputMixin, Model):
    """A canned regressor, trained for the least mean squared error; `n_outputs_` is the number of targets."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the start.

        Args:
            X: `[rows, features]`, dense or sparse.
            y: `[rows]`, or `[rows, outputs]`.
            sample_weight: `[rows]`, not negative; a weight of two counts as two copies, zero as none.

        Raises:
            ValueError: a parameter or the data is not as it must be.
        """
        return self._fit_from_scratch(self._checked_rows(X, y, sample_weight, reset=True), stratify=False)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one pass over some data, from where the last call ended; arguments as for `fit`.

        Raises:
            ValueError: as in `fit`, or the number of targets is not that of the first call.
        """
        first = not hasattr(self, "n_outputs_")
        return self._fit_more(self._checked_rows(X, y, sample_weight, reset=first))

    def predict(self, X: Any) -> np.ndarray:
        """Return float64 `[rows]`, or `[rows, outputs]` when `y` had two dimensions."""
        values = self._predicted_logits(X)
        return values[:, 0] if self._flat else values

    def _head(self) -> Head:
        return RegressionHead(self.n_outputs_, weight_column=WEIGHT)

    def _mean_loss(self, logits: np.ndarray, rows: Rows) -> float:
        squares = np.square(logits - rows.targets).mean(axis=1)
        return float(np.average(squares, weights=rows.weights))

    def _example(self) -> Rows:
        features = np.zeros((0, self.n_features_in_), np.float32)
        return Rows(features, np.zeros((0, self.n_outputs_), np.float32), np.zeros(0))

    def _checked_rows(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Rows:
        features, targets = self._checked_data(X, y, multi_output=True, y_numeric=True, reset=reset)
        weights = _check_sample_weight(sample_weight, features, dtype=np.float64)
        table = targets.reshape(len(targets), -1).astype(np.float32)
        if reset:
            self.n_outputs_, self._flat = table.shape[1], targets.ndim == 1
        elif table.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {table.shape[1]} targets; it had {self.n_outputs_} in the first call.")
        return weighted_rows(features, table, weights)
