"""Baselines: models that ignore the features and learn what is most likely without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

from appliance.estimator.canned.model_fns import ModelFn, classification_head, resolved
from appliance.estimator.estimator import Estimator
from appliance.estimator.heads import Head, RegressionHead
from appliance.estimator.model_fn import EstimatorSpec
from appliance.estimator.run_config import RunConfig

_LEARNING_RATE = 0.3


def baseline_model_fn(head: Head, optimizer: Any, weight_column: Any = None) -> ModelFn:
    """Return the model_fn of a bias, `baseline/bias`; an optimizer given by name learns at 0.3.

    Raises:
        ValueError: the optimizer's name is unknown.
    """
    optimizer = resolved(optimizer, _LEARNING_RATE)
    weight_key = weight_column.key if isinstance(weight_column, fc.NumericColumn) else weight_column

    def model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
        units = head.logits_dimension
        with tf.compat.v1.variable_scope("baseline"):
            bias = tf.compat.v1.get_variable(
                "bias", [units], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
            )
        logits = bias * tf.ones([_batch_size(features, weight_key), units])
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=logits,
            optimizer=optimizer,
            trainable_variables=[bias],
        )

    return model_fn


def _batch_size(features: Any, weight_key: str | None) -> tf.Tensor:
    # The weights do not count: there need be none when serving.
    given = features if isinstance(features, Mapping) else {"": features}
    for key, tensor in given.items():
        if key != weight_key:
            return tf.shape(tensor, out_type=tf.int32)[0]
    raise ValueError(
        f"A baseline needs a feature to know how many examples there are; given: {sorted(given)}. Return at "
        "least one beside the weights from the input_fn."
    )


class BaselineClassifier(Estimator):
    """Learns how frequent each class is, and predicts that for every example.

    Args:
        model_dir, config: as for `Estimator`.
        n_classes, weight_column, label_vocabulary, loss_reduction: as for `LinearClassifier`.
        optimizer: a name ('Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', which then learns at 0.3), a Keras or
            `tf.compat.v1.train` optimizer, or a callable without arguments that returns one.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.BaselineClassifier`.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = "sum_over_batch_size",
    ) -> None:
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            baseline_model_fn(head, optimizer, weight_column), model_dir=model_dir, config=config
        )


class BaselineRegressor(Estimator):
    """Learns the mean of the labels, and predicts that for every example.

    Args:
        label_dimension: how many values an example has.
        model_dir, weight_column, optimizer, config, loss_reduction: as for `BaselineClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Source: `tf.estimator.BaselineRegressor`.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = "sum_over_batch_size",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column=weight_column, loss_reduction=loss_reduction)
        super().__init__(
            baseline_model_fn(head, optimizer, weight_column), model_dir=model_dir, config=config
        )


class BaselineEstimator(Estimator):
    """A baseline with the head that it is given.

    Args:
        head: what turns the bias into loss, predictions and metrics.
        model_dir, optimizer, config: as for `BaselineClassifier`.

    Raises:
        ValueError: the optimizer's name is unknown.

    Source: `tf.estimator.BaselineEstimator`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(baseline_model_fn(head, optimizer), model_dir=model_dir, config=config)
