"""Linear models of feature columns, for classes and for real values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from appliance.estimator.canned.model_fns import classification_head, linear_model_fn
from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head, RegressionHead
from appliance.estimator.run_config import RunConfig


class LinearClassifier(Estimator):
    """A linear model for classes: logistic regression for two, softmax regression for more.

    Args:
        feature_columns: dense or categorical columns.
        model_dir, config, warm_start_from: as for `Estimator`.
        n_classes: how many classes; labels are integers in [0, n_classes); for two, also numbers
            between 0 and 1.
        weight_column: a feature's name, or a numeric column, with the weight of each example.
        label_vocabulary: the labels, when they are strings.
        optimizer: a name ('Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', which then learns at 0.2), a Keras or
            `tf.compat.v1.train` optimizer, or a callable without arguments that returns one. None: Ftrl at
            `min(0.2, 1 / sqrt(number of columns))`.
        loss_reduction: `sum_over_batch_size` (the mean) or `sum`.
        sparse_combiner: how several values of a categorical column in one example are reduced: `sum`, `mean`
            or `sqrtn`.
        class_weight: label to the weight of its examples in the training loss (1 for labels left out); losses
            and metrics of an evaluation are without it. None: all weigh the same.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.LinearClassifier`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        sparse_combiner: str = "sum",
        class_weight: Mapping[Any, float] | None = None,
    ) -> None:
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction, class_weight)
        super().__init__(
            linear_model_fn(head, feature_columns, optimizer, sparse_combiner),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearRegressor(Estimator):
    """A linear model for real values: least squares.

    Args:
        label_dimension: how many values an example has.
        feature_columns, model_dir, weight_column, optimizer, config, warm_start_from, loss_reduction,
            sparse_combiner: as for `LinearClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.LinearRegressor`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column=weight_column, loss_reduction=loss_reduction)
        super().__init__(
            linear_model_fn(head, feature_columns, optimizer, sparse_combiner),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )


class LinearEstimator(Estimator):
    """A linear model with the head that it is given.

    Args:
        head: what turns the logits into loss, predictions and metrics.
        feature_columns, model_dir, optimizer, config, sparse_combiner, warm_start_from: as for
            `LinearClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.LinearEstimator`.
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        super().__init__(
            linear_model_fn(head, feature_columns, optimizer, sparse_combiner),
            model_dir=model_dir,
            config=config,
            warm_start_from=warm_start_from,
        )
