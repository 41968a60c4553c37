"""Linear models with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from appliance.estimator import canned
from appliance.estimator.canned.model_fns import linear_model_fn
from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head
from appliance.estimator.sklearn.base import Model
from appliance.estimator.sklearn.classifier import Classifier
from appliance.estimator.sklearn.layers import linear_logits
from appliance.estimator.sklearn.regressor import Regressor
from appliance.estimator.sklearn.trainer import FEATURE, WEIGHT


class _LinearModel(Model):
    """A model with weights and a bias only."""

    def _model_settings(self) -> tuple[Any, ...]:
        return self.optimizer, self.learning_rate

    def _columns(self) -> list[Any]:
        return [tf.feature_column.numeric_column(FEATURE, shape=(self.n_features_in_,))]

    def _model_fn(self, head: Head) -> Any:
        return linear_model_fn(head, self._columns(), self._optimizer(), "sum")

    def _logits(self, variables: Mapping[str, np.ndarray], features: Any) -> np.ndarray:
        return linear_logits(variables, features)


class LinearClassifier(Classifier, _LinearModel):
    """`appliance.estimator.LinearClassifier` as a scikit-learn classifier: logistic or softmax regression.

    Args: as for `DNNClassifier`, but for those of the hidden layers.
    """

    def __init__(
        self,
        *,
        optimizer: Any = "Ftrl",
        learning_rate: float = 0.2,
        batch_size: int = 128,
        max_epochs: int = 200,
        steps: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        class_weight: Any = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            optimizer,
            learning_rate,
            batch_size,
            max_epochs,
            steps,
            early_stopping,
            validation_fraction,
            n_iter_no_change,
            tol,
            random_state,
        )
        self.class_weight = class_weight

    def _canned(self, model_dir: str) -> Estimator:
        if not self._labels.exclusive:
            optimizer = self._optimizer()
            return canned.LinearEstimator(
                self._head(), self._columns(), model_dir=model_dir, optimizer=optimizer
            )
        return canned.LinearClassifier(
            self._columns(),
            model_dir=model_dir,
            n_classes=len(self.classes_),
            weight_column=WEIGHT,
            label_vocabulary=self._label_vocabulary(),
            optimizer=self._optimizer(),
        )


class LinearRegressor(Regressor, _LinearModel):
    """`appliance.estimator.LinearRegressor` as a scikit-learn regressor, for one target or several.

    Args: as for `DNNClassifier`, but for those of the hidden layers and `class_weight`.
    """

    def __init__(
        self,
        *,
        optimizer: Any = "Ftrl",
        learning_rate: float = 0.2,
        batch_size: int = 128,
        max_epochs: int = 200,
        steps: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            optimizer,
            learning_rate,
            batch_size,
            max_epochs,
            steps,
            early_stopping,
            validation_fraction,
            n_iter_no_change,
            tol,
            random_state,
        )

    def _canned(self, model_dir: str) -> canned.LinearRegressor:
        return canned.LinearRegressor(
            self._columns(),
            model_dir=model_dir,
            label_dimension=self.n_outputs_,
            weight_column=WEIGHT,
            optimizer=self._optimizer(),
        )
