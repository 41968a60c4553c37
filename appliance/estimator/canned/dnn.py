"""Feed-forward networks over feature columns, for classes and for real values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.canned.layers import Network
from appliance.estimator.canned.model_fns import classification_head, dnn_model_fn
from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head, RegressionHead
from appliance.estimator.run_config import RunConfig


class DNNClassifier(Estimator):
    """A feed-forward network for classes.

    Args:
        hidden_units: the sizes of the hidden layers, from the input on.
        feature_columns: dense columns.
        model_dir, config, warm_start_from: as for `Estimator`.
        n_classes: how many classes; labels are integers in [0, n_classes); for two, also numbers
            between 0 and 1.
        weight_column: a feature's name, or a numeric column, with the weight of each example.
        label_vocabulary: the labels, when they are strings.
        optimizer: a name ('Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', with Keras' learning rate), a Keras or
            `tf.compat.v1.train` optimizer, or a callable without arguments that returns one.
        activation_fn: of the hidden layers: a function, the name of a Keras one, or None for none.
        dropout: the probability of dropping a hidden unit's output in training, or None.
        loss_reduction: `sum_over_batch_size` (the mean) or `sum`.
        batch_norm: whether to normalise over the batch after each hidden layer.
        class_weight: label to the weight of its examples in the training loss (1 for labels left out); losses
            and metrics of an evaluation are without it. None: all weigh the same.
        mixed_precision: whether the layers of the network compute in bfloat16, which is fast on hardware that
            has it; variables and logits stay float32.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.DNNClassifier`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
        class_weight: Mapping[Any, float] | None = None,
        mixed_precision: bool = False,
    ) -> None:
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction, class_weight)
        network = Network(hidden_units, feature_columns, activation_fn, dropout, batch_norm, mixed_precision)
        super().__init__(
            dnn_model_fn(head, network, optimizer),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNRegressor(Estimator):
    """A feed-forward network for real values: least squares.

    Args:
        label_dimension: how many values an example has.
        hidden_units, feature_columns, model_dir, weight_column, optimizer, activation_fn, dropout, config,
            warm_start_from, loss_reduction, batch_norm, mixed_precision: as for `DNNClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.DNNRegressor`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
        mixed_precision: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column=weight_column, loss_reduction=loss_reduction)
        network = Network(hidden_units, feature_columns, activation_fn, dropout, batch_norm, mixed_precision)
        super().__init__(
            dnn_model_fn(head, network, optimizer),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNEstimator(Estimator):
    """A feed-forward network with the head that it is given.

    Args:
        head: what turns the logits into loss, predictions and metrics.
        hidden_units, feature_columns, model_dir, optimizer, activation_fn, dropout, config, warm_start_from,
            batch_norm: as for `DNNClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.DNNEstimator`.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        network = Network(hidden_units, feature_columns, activation_fn, dropout, batch_norm)
        super().__init__(
            dnn_model_fn(head, network, optimizer),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
