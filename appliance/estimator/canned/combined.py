"""Wide and deep: a linear model and a feed-forward network that are trained together.

References:
    Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.canned.layers import Network
from appliance.estimator.canned.model_fns import classification_head, combined_model_fn
from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head, RegressionHead
from appliance.estimator.run_config import RunConfig


class DNNLinearCombinedClassifier(Estimator):
    """A linear model and a network for classes; their logits are summed. Either may be left out.

    Args:
        model_dir, config, warm_start_from: as for `Estimator`.
        linear_feature_columns: dense or categorical columns.
        linear_optimizer: as for `LinearClassifier`; a name learns at 0.005, or at
            `1 / sqrt(number of columns)` if that is less.
        dnn_feature_columns: dense columns.
        dnn_optimizer: as for `DNNClassifier`; a name learns at 0.001.
        dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm: as for `DNNClassifier`.
        n_classes, weight_column, label_vocabulary, loss_reduction: as for `DNNClassifier`.
        linear_sparse_combiner: as `sparse_combiner` for `LinearClassifier`.
        class_weight: label to the weight of its examples in the training loss (1 for labels left out); losses
            and metrics of an evaluation are without it. None: all weigh the same.
        mixed_precision: whether the layers of the network compute in bfloat16, which is fast on hardware that
            has it; variables and logits stay float32.

    Raises:
        ValueError: an argument is out of range or of the wrong type, or there are no columns.

    Source: `tf.estimator.DNNLinearCombinedClassifier`.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        class_weight: Mapping[Any, float] | None = None,
        mixed_precision: bool = False,
    ) -> None:
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction, class_weight)
        network = Network(
            dnn_hidden_units or [],
            dnn_feature_columns or [],
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
            mixed_precision,
        )
        super().__init__(
            combined_model_fn(
                head, network, dnn_optimizer, linear_feature_columns, linear_optimizer, linear_sparse_combiner
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedRegressor(Estimator):
    """A linear model and a network for real values; their outputs are summed. Either may be left out.

    Args:
        label_dimension: how many values an example has.
        the others: as for `DNNLinearCombinedClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type, or there are no columns.

    Source: `tf.estimator.DNNLinearCombinedRegressor`.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        mixed_precision: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column=weight_column, loss_reduction=loss_reduction)
        network = Network(
            dnn_hidden_units or [],
            dnn_feature_columns or [],
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
            mixed_precision,
        )
        super().__init__(
            combined_model_fn(
                head, network, dnn_optimizer, linear_feature_columns, linear_optimizer, linear_sparse_combiner
            ),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedEstimator(Estimator):
    """A linear model and a network with the head that it is given; their logits are summed.

    Args:
        head: what turns the logits into loss, predictions and metrics.
        the others: as for `DNNLinearCombinedClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type, or there are no columns.

    Source: `tf.estimator.DNNLinearCombinedEstimator`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | None = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[tf.Tensor], tf.Tensor] | str | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = Network(
            dnn_hidden_units or [], dnn_feature_columns or [], dnn_activation_fn, dnn_dropout, batch_norm
        )
        super().__init__(
            combined_model_fn(
                head, network, dnn_optimizer, linear_feature_columns, linear_optimizer, linear_sparse_combiner
            ),
            model_dir=model_dir,
            config=config,
        )
