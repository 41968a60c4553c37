"""What the scikit-learn estimators share: parameters, training, and the way to a canned Estimator."""

from __future__ import annotations

import abc
import math
import numbers
import tempfile
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head
from appliance.estimator.optimizers import get_optimizer
from appliance.estimator.sklearn.epochs import History, Limits, train
from appliance.estimator.sklearn.rows import Rows
from appliance.estimator.sklearn.trainer import Trainer


class Model(BaseEstimator, abc.ABC):
    """A canned model with the interface of a scikit-learn estimator.

    Attributes that `fit` sets:
        variables_: all variables as numpy arrays, by their names in a checkpoint; the optimizer's included.
        n_iter_: how many passes over the data there were.
        loss_curve_: the training loss of each pass, before each step of it.
        validation_loss_curve_: with `early_stopping`, the loss on the validation data after each pass.
        n_features_in_, feature_names_in_: as scikit-learn says.
    """

    def __init__(
        self,
        optimizer: Any,
        learning_rate: float,
        batch_size: int,
        max_epochs: int,
        steps: int | None,
        early_stopping: bool,
        validation_fraction: float,
        n_iter_no_change: int,
        tol: float,
        random_state: Any,
    ) -> None:
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.steps = steps
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state

    @abc.abstractmethod
    def _model_fn(self, head: Head) -> Any:
        """Return the canned model_fn for a feature `x`."""

    @abc.abstractmethod
    def _logits(self, variables: Mapping[str, np.ndarray], features: Any) -> np.ndarray:
        """Return float64 `[rows, units]`."""

    @abc.abstractmethod
    def _head(self) -> Head:
        """Return the head for the targets that were fitted."""

    @abc.abstractmethod
    def _mean_loss(self, logits: np.ndarray, rows: Rows) -> float:
        """Return the weighted mean loss, as the head has it."""

    @abc.abstractmethod
    def _canned(self, model_dir: str) -> Estimator:
        """Return the canned Estimator that reads checkpoints of this model."""

    @abc.abstractmethod
    def _model_settings(self) -> tuple[Any, ...]:
        """Return the parameters that the graph depends on, checked."""

    def to_estimator(self, model_dir: str | None = None) -> Estimator:
        """Write a checkpoint and return the canned Estimator that goes on from it: to export, to evaluate.

        Its one feature is `x`, float32 `[batch, n_features_in_]`; its weight column is `weight`, needed only
        to train and to evaluate. Classes that are not 0, 1, ... become a label vocabulary of strings.

        Args:
            model_dir: the folder of the checkpoint; None: a new temporary one.

        Raises:
            NotFittedError: there was no `fit` yet.
        """
        check_is_fitted(self, "variables_")
        folder = tempfile.mkdtemp() if model_dir is None else model_dir
        # No initial value is used, so that no seed is drawn for them.
        trainer = self._new_trainer(self._example(), seed=0)
        try:
            trainer.load(self.variables_)
            trainer.save(folder)
        finally:
            trainer.close()
        return self._canned(folder)

    def _optimizer(self) -> Any:
        return get_optimizer(self.optimizer, self.learning_rate)

    def _new_trainer(self, example: Rows, seed: int | None = None) -> Trainer:
        if seed is None:
            seed = self._random.randint(np.iinfo(np.int32).max)
        return Trainer(self._model_fn(self._head()), example, seed)

    @abc.abstractmethod
    def _example(self) -> Rows:
        """Return no rows, of the shapes and dtypes that were fitted."""

    def _fit_from_scratch(self, rows: Rows, stratify: bool) -> Self:
        """Forget what was fitted before, and train.

        Args:
            rows: all data.
            stratify: whether each class must be in the validation data.
        """
        limits = self._limits()
        self._drop_trainer()
        self._random = check_random_state(self.random_state)
        validation = None
        if self.early_stopping:
            rows, validation = self._split(rows, stratify)

        def validation_loss(variables: Mapping[str, np.ndarray]) -> float:
            assert validation is not None
            return self._mean_loss(self._logits(variables, validation.features), validation)

        trainer = self._new_trainer(rows)
        try:
            history = train(
                trainer,
                rows.distinct().normalized(),
                limits,
                self._random,
                None if validation is None else validation_loss,
            )
        finally:
            trainer.close()
        self.loss_curve_: list[float] = []
        self.validation_loss_curve_ = history.validation_losses
        return self._keep(history)

    def _fit_more(self, rows: Rows) -> Self:
        """Train for one pass more; the session stays open for the next call."""
        limits = self._limits()._replace(epochs=1)
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True: no data can be held out.")
        if not hasattr(self, "variables_"):
            self._random = check_random_state(self.random_state)
            self.loss_curve_, self.validation_loss_curve_ = [], []
        settings = self._model_settings()
        kept = self.__dict__.get("_trainer")
        if kept is None or kept[0] != settings:
            self._drop_trainer()
            kept = (settings, self._new_trainer(rows))
            if hasattr(self, "variables_"):
                kept[1].load(self.variables_)
            self._trainer = kept
        return self._keep(train(kept[1], rows.distinct().normalized(), limits, self._random))

    def _keep(self, history: History) -> Self:
        self.variables_ = history.variables
        self.loss_curve_.extend(history.losses)
        self.n_iter_ = len(self.loss_curve_)
        return self

    def _drop_trainer(self) -> None:
        _, trainer = self.__dict__.pop("_trainer", (None, None))
        if trainer is not None:
            trainer.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but an open session."""
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_trainer", None)
        return state

    def _split(self, rows: Rows, stratify: bool) -> tuple[Rows, Rows]:
        training, validation = train_test_split(
            np.arange(len(rows.weights)),
            test_size=self.validation_fraction,
            random_state=self._random,
            stratify=rows.targets if stratify else None,
        )
        return rows.take(training), rows.take(validation)

    def _limits(self) -> Limits:
        """Return when to end, from the parameters.

        Raises:
            ValueError: one is out of range.
        """
        for name in ("batch_size", "max_epochs", "n_iter_no_change", "steps"):
            value = getattr(self, name)
            if not (name == "steps" and value is None):
                whole = isinstance(value, numbers.Integral) or value == math.inf
                _check(name, value, whole and value >= 1, "a whole number of at least 1")
        _check("tol", self.tol, self.tol >= 0, "a number of at least 0")
        _check("learning_rate", self.learning_rate, self.learning_rate > 0, "a positive number")
        fraction = self.validation_fraction
        _check("validation_fraction", fraction, 0 < fraction < 1, "a number between 0 and 1")
        self._model_settings()
        return Limits(self.batch_size, self.max_epochs, self.steps, self.n_iter_no_change, self.tol)

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn is to know: sparse features are taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _checked_data(self, X: Any, y: Any = "no_validation", **checks: Any) -> Any:
        """Return the features, float32 `[rows, n_features_in_]`, and the targets if there are any.

        Args:
            X: an array, a data frame or a sparse matrix.
            y: the targets.
            checks: as for `sklearn.utils.validation.validate_data`.
        """
        checked = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32, order="C", **checks)
        if isinstance(y, str):
            return checked
        features, targets = checked
        if sparse.issparse(features) and not features.has_canonical_format:
            # In place, so not in the caller's own matrix.
            features = features.copy()
            features.sum_duplicates()
        return features, targets

    def _predicted_logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "variables_")
        return self._logits(self.variables_, self._checked_data(X, reset=False))


def _check(name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {what}; got {value!r}.")


def weighted_rows(features: Any, targets: np.ndarray, weights: np.ndarray) -> Rows:
    """Return the examples whose weight is not zero.

    Raises:
        ValueError: a weight is negative, or all are zero.
    """
    if (weights < 0).any():
        raise ValueError(f"Negative values in sample_weight: {weights[weights < 0][:3]}. Use 0 to leave out.")
    counting = weights > 0
    if not counting.any():
        raise ValueError("Sample weights must contain at least one non-zero number; all are zero.")
    rows = Rows(features, targets, weights)
    return rows if counting.all() else rows.take(counting)
