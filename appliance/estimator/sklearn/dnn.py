"""Feed-forward networks with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from appliance.estimator import canned
from appliance.estimator.canned.layers import Network
from appliance.estimator.canned.model_fns import dnn_model_fn
from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head
from appliance.estimator.sklearn.base import Model
from appliance.estimator.sklearn.classifier import Classifier
from appliance.estimator.sklearn.layers import ACTIVATIONS, check_sizes, network_logits
from appliance.estimator.sklearn.regressor import Regressor
from appliance.estimator.sklearn.trainer import FEATURE, WEIGHT


class _NetworkModel(Model):
    """A model with hidden layers."""

    hidden_units: Sequence[int]
    activation: str
    dropout: float

    def _model_settings(self) -> tuple[Any, ...]:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}; got {self.activation!r}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1; got {self.dropout!r}.")
        units = tuple(check_sizes(self.hidden_units))
        return units, self.activation, self.dropout, self.optimizer, self.learning_rate

    def _network(self) -> dict[str, Any]:
        return {
            "hidden_units": check_sizes(self.hidden_units),
            "feature_columns": [tf.feature_column.numeric_column(FEATURE, shape=(self.n_features_in_,))],
            "activation_fn": ACTIVATIONS[self.activation][0],
            "dropout": self.dropout or None,
            "batch_norm": False,
        }

    def _model_fn(self, head: Head) -> Any:
        return dnn_model_fn(head, Network(**self._network()), self._optimizer())

    def _logits(self, variables: Mapping[str, np.ndarray], features: Any) -> np.ndarray:
        return network_logits(variables, self.activation, features)


class DNNClassifier(Classifier, _NetworkModel):
    """`appliance.estimator.DNNClassifier` as a scikit-learn classifier.

    Features are numbers, best scaled (StandardScaler), in a dense or sparse matrix. Everything that was
    learnt is in `variables_`, so that the object can be pickled; `to_estimator` gives the Estimator, to
    export it.

    Args:
        hidden_units: the sizes of the hidden layers, from the input on.
        activation: of the hidden layers: `relu`, `tanh`, `sigmoid`, `elu` or `linear`.
        dropout: the probability of dropping a hidden unit's output in training.
        optimizer: a name ('Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD'), a Keras or `tf.compat.v1.train`
            optimizer, or a callable without arguments that returns one.
        learning_rate: for an optimizer given by name.
        batch_size: examples a step.
        max_epochs: passes over the data, at most.
        steps: steps, at most; None for no limit.
        early_stopping: whether to hold out `validation_fraction` of the data, to end when the loss on it
            improves no more, and to keep the variables of the best pass. Otherwise the training loss counts.
        validation_fraction: between 0 and 1.
        n_iter_no_change: how many passes in a row may improve the loss by less than `tol`.
        tol: see `n_iter_no_change`.
        class_weight: dict of class to weight, `balanced` (inversely to how frequent a class is), or None.
        random_state: seed of the initial values, dropout, the order of examples and what is held out.
    """

    def __init__(
        self,
        hidden_units: Sequence[int] = (100,),
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        optimizer: Any = "Adam",
        learning_rate: float = 0.001,
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
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout
        self.class_weight = class_weight

    def _canned(self, model_dir: str) -> Estimator:
        if not self._labels.exclusive:
            optimizer = self._optimizer()
            return canned.DNNEstimator(
                self._head(), **self._network(), model_dir=model_dir, optimizer=optimizer
            )
        return canned.DNNClassifier(
            **self._network(),
            model_dir=model_dir,
            n_classes=len(self.classes_),
            weight_column=WEIGHT,
            label_vocabulary=self._label_vocabulary(),
            optimizer=self._optimizer(),
        )


class DNNRegressor(Regressor, _NetworkModel):
    """`appliance.estimator.DNNRegressor` as a scikit-learn regressor, for one target or several.

    Features and targets are numbers, best scaled (StandardScaler, TransformedTargetRegressor).

    Args: as for `DNNClassifier`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int] = (100,),
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        optimizer: Any = "Adam",
        learning_rate: float = 0.001,
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
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout

    def _canned(self, model_dir: str) -> canned.DNNRegressor:
        return canned.DNNRegressor(
            **self._network(),
            model_dir=model_dir,
            label_dimension=self.n_outputs_,
            weight_column=WEIGHT,
            optimizer=self._optimizer(),
        )
