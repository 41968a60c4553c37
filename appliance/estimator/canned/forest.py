"""Random forests: fitted by scikit-learn, evaluated and exported as plain TensorFlow operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

from appliance.estimator.canned.model_fns import ModelFn, classification_head
from appliance.estimator.canned.trees import Trees, make_variables, mean_outputs
from appliance.estimator.estimator import Estimator
from appliance.estimator.feature_columns import check_columns, dense_input
from appliance.estimator.feature_inputs import FeatureInputs
from appliance.estimator.heads import RegressionHead
from appliance.estimator.heads.checks import check_labels, example_weights
from appliance.estimator.heads.classes import vocabulary_ids
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.run_config import RunConfig

_LEAST_PROBABILITY = 1e-12
"""Keeps the logits, which are logarithms, finite. Well below what float32 probabilities can show."""
_NEVER_SECONDS = 10**9


class Examples(NamedTuple):
    """The training data.

    Fields:
        features: float32 `[examples, features]`.
        labels: float64 `[examples, label dimension]`: values, or class ids.
        weights: float64 `[examples]`; None without a weight column.
    """

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None


class RandomForestClassifier(Estimator):
    """A random forest for classes.

    `train` takes all batches that the input_fn gives, or as many as `steps` or `max_steps` say, and then
    fits the forest by scikit-learn, in memory and on this machine; another `train` puts a new forest in its
    place. Training needs the package scikit-learn; evaluation, prediction and the exported model do not.
    There is nothing to save before the fit, so `RunConfig`'s frequency of checkpoints has no effect. The
    probabilities are scikit-learn's; the logits are their logarithms (for two classes: the difference).

    Args:
        feature_columns: dense columns without variables: numeric, bucketized, indicator, crossed in an
            indicator.
        model_dir, config: as for `Estimator`; `tf_random_seed` of the config is the seed of the forest.
        n_classes: how many classes; labels are integers in [0, n_classes).
        weight_column: a feature's name, or a numeric column, with the weight of each example.
        label_vocabulary: the labels, when they are strings.
        num_trees: how many trees.
        criterion: `gini`, `entropy` or `log_loss`.
        max_depth: the depth of a tree at most; None for no limit.
        min_samples_split, min_samples_leaf: how many examples a node that is split, and a leaf, have at
            least.
        max_features: how many features a split chooses from: a number, a fraction, `sqrt`, `log2` or None for
            all.
        max_leaf_nodes: how many leaves a tree has at most; None for no limit.
        bootstrap: whether each tree sees a random sample of the examples.
        class_weight: `balanced`, `balanced_subsample` or a dict of class id to weight; None for equal ones.
        n_jobs: how many cores fit; None for one, -1 for all.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    References:
        Breiman, Random Forests, Machine Learning 45, 2001. Source: TF.Learn's random forest estimator and
        `sklearn.ensemble.RandomForestClassifier`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        num_trees: int = 100,
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = 1,
        max_features: int | float | str | None = "sqrt",
        max_leaf_nodes: int | None = None,
        bootstrap: bool = True,
        class_weight: str | Mapping[int, float] | None = None,
        n_jobs: int | None = None,
        config: RunConfig | None = None,
    ) -> None:
        head = classification_head(n_classes, weight_column, label_vocabulary, "sum_over_batch_size")
        config = _forest_config(config)
        options = {
            "n_estimators": _checked_count(num_trees),
            "criterion": criterion,
            "max_depth": max_depth,
            "min_samples_split": min_samples_split,
            "min_samples_leaf": min_samples_leaf,
            "max_features": max_features,
            "max_leaf_nodes": max_leaf_nodes,
            "bootstrap": bootstrap,
            "class_weight": class_weight,
            "n_jobs": n_jobs,
            "random_state": config.tf_random_seed,
        }

        def class_ids(labels: tf.Tensor) -> tf.Tensor:
            return labels if label_vocabulary is None else vocabulary_ids(labels, label_vocabulary)

        def logits(probabilities: tf.Tensor) -> tf.Tensor:
            logs = tf.math.log(tf.maximum(probabilities, tf.constant(_LEAST_PROBABILITY, tf.float64)))
            return logs[:, 1:] - logs[:, :1] if n_classes == 2 else logs

        model = _Model(
            head=head,
            columns=_checked_columns(feature_columns),
            weight_column=weight_column,
            label_dimension=1,
            labels=class_ids,
            start=[1.0 / n_classes] * n_classes,
            logits=logits,
            fit=lambda examples: _fit_classifier(examples, n_classes, options),
        )
        super().__init__(_forest_model_fn(model), model_dir=model_dir, config=config)
        self._columns = model.columns

    def feature_importances(self) -> dict[str, float]:
        """Return by column name how much of the decrease of impurity is due to it; the sum is one.

        Raises:
            ValueError: no forest has been fitted.
        """
        return _importances(self, self._columns)


class RandomForestRegressor(Estimator):
    """A random forest for real values; trained as `RandomForestClassifier` is.

    Args:
        label_dimension: how many values an example has.
        criterion: `squared_error`, `absolute_error`, `friedman_mse` or `poisson`.
        the others: as for `RandomForestClassifier`.

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    References:
        Breiman, Random Forests, Machine Learning 45, 2001. Source: TF.Learn's random forest estimator and
        `sklearn.ensemble.RandomForestRegressor`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        num_trees: int = 100,
        criterion: str = "squared_error",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = 1,
        max_features: int | float | str | None = 1.0,
        max_leaf_nodes: int | None = None,
        bootstrap: bool = True,
        n_jobs: int | None = None,
        config: RunConfig | None = None,
    ) -> None:
        config = _forest_config(config)
        options = {
            "n_estimators": _checked_count(num_trees),
            "criterion": criterion,
            "max_depth": max_depth,
            "min_samples_split": min_samples_split,
            "min_samples_leaf": min_samples_leaf,
            "max_features": max_features,
            "max_leaf_nodes": max_leaf_nodes,
            "bootstrap": bootstrap,
            "n_jobs": n_jobs,
            "random_state": config.tf_random_seed,
        }
        model = _Model(
            head=RegressionHead(label_dimension, weight_column=weight_column),
            columns=_checked_columns(feature_columns),
            weight_column=weight_column,
            label_dimension=label_dimension,
            labels=lambda labels: labels,
            start=[0.0] * label_dimension,
            logits=lambda means: means,
            fit=lambda examples: _fit_regressor(examples, options),
        )
        super().__init__(_forest_model_fn(model), model_dir=model_dir, config=config)
        self._columns = model.columns

    def feature_importances(self) -> dict[str, float]:
        """As for `RandomForestClassifier`."""
        return _importances(self, self._columns)


class _Model(NamedTuple):
    """What tells the two forests apart.

    Fields:
        head: makes predictions, loss and metrics of the logits.
        columns: the dense columns.
        weight_column: as the head has it.
        label_dimension: how many labels an example has.
        labels: from the labels to class ids or values.
        start: the outputs for every example before there is a forest.
        logits: from the forest's outputs, float64, to the logits.
        fit: grows the trees.
    """

    head: Any
    columns: list[Any]
    weight_column: Any
    label_dimension: int
    labels: Callable[[tf.Tensor], tf.Tensor]
    start: list[float]
    logits: Callable[[tf.Tensor], tf.Tensor]
    fit: Callable[[Examples], Trees]


def _forest_model_fn(model: _Model) -> ModelFn:
    """Return the model_fn of a forest."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
        if mode == ModeKeys.TRAIN:
            _check_alone(config)
        values, _ = dense_input(FeatureInputs(features), model.columns)
        trees = make_variables(Trees.leaf(model.start))
        logits = tf.cast(model.logits(mean_outputs(trees, values, len(model.start))), tf.float32)
        fitting = _FitHook(trees, model.fit) if mode == ModeKeys.TRAIN else None

        def collect(_: tf.Tensor) -> tf.Operation:
            assert fitting is not None
            targets = model.labels(check_labels(labels, logits, model.label_dimension))
            weights = example_weights(features, model.weight_column, logits)
            with tf.control_dependencies([fitting.collect(values, targets, weights)]):
                step = tf.compat.v1.train.get_or_create_global_step()
                return step.assign_add(1, read_value=False)

        spec = model.head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=logits,
            train_op_fn=collect if fitting is not None else None,
        )
        return spec if fitting is None else spec._replace(training_hooks=[fitting])

    return model_fn


class _FitHook(tf.compat.v1.train.SessionRunHook):
    """Keeps the batches of a training run, and fits the forest when they have ended."""

    def __init__(self, trees: Trees, fit: Callable[[Examples], Trees]) -> None:
        self._fit = fit
        self._batches: list[tuple[np.ndarray, ...]] = []
        self._fed = Trees(*(tf.compat.v1.placeholder(each.dtype, each.shape) for each in trees))
        pairs = zip(trees, self._fed, strict=True)
        self._assign = tf.group(*(variable.assign(fed, read_value=False) for variable, fed in pairs))

    def collect(self, values: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None) -> tf.Operation:
        """Return the operation that keeps one batch."""
        tensors = [values, tf.cast(labels, tf.float64)]
        if weights is not None:
            tensors.append(tf.cast(weights[:, 0], tf.float64))

        def keep(*batch: np.ndarray) -> np.int32:
            # The arrays are TensorFlow's own memory, which the next step may use again.
            self._batches.append(tuple(np.array(array) for array in batch))
            return np.int32(len(self._batches))

        return tf.numpy_function(keep, tensors, tf.int32).op

    def end(self, session: Any) -> None:
        """Fit, and put the forest into the variables, before the last checkpoint is written."""
        if not self._batches:
            return
        features, labels, *weights = (np.concatenate(arrays) for arrays in zip(*self._batches, strict=True))
        self._batches.clear()
        grown = self._fit(Examples(features, labels, weights[0] if weights else None))
        session.run(self._assign, dict(zip(self._fed, grown, strict=True)))


def _fit_classifier(examples: Examples, n_classes: int, options: Mapping[str, Any]) -> Trees:
    labels = examples.labels[:, 0]
    if not np.array_equal(labels, np.floor(labels)):
        soft = labels[labels != np.floor(labels)][0]
        raise ValueError(
            f"The labels of a RandomForestClassifier must be whole class ids; got {soft}. Round them, or use "
            "a RandomForestRegressor."
        )
    forest = _ensemble().RandomForestClassifier(**options)
    fitted = forest.fit(examples.features, labels.astype(np.int64), examples.weights)
    values = []
    for tree in fitted.estimators_:
        value = np.zeros((tree.tree_.node_count, n_classes))
        # Classes that the data lacks have probability zero.
        value[:, fitted.classes_] = tree.tree_.value[:, 0, :]
        values.append(value)
    return Trees.of(fitted, values)


def _fit_regressor(examples: Examples, options: Mapping[str, Any]) -> Trees:
    labels = examples.labels[:, 0] if examples.labels.shape[1] == 1 else examples.labels
    forest = _ensemble().RandomForestRegressor(**options)
    fitted = forest.fit(examples.features, labels, examples.weights)
    return Trees.of(fitted, [tree.tree_.value[:, :, 0] for tree in fitted.estimators_])


def _importances(forest: Estimator, columns: Sequence[Any]) -> dict[str, float]:
    values = forest.get_variable_value("forest/importance")
    sizes = [column.variable_shape.num_elements() for column in columns]
    if len(values) != sum(sizes):
        raise ValueError(
            f"The checkpoint in {forest.model_dir} has no fitted forest yet. Train to the end first."
        )
    pieces = np.split(values, np.cumsum(sizes)[:-1])
    return {column.name: float(piece.sum()) for column, piece in zip(columns, pieces, strict=True)}


def _ensemble() -> Any:
    """Return scikit-learn's forests.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn import ensemble
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Training a random forest needs scikit-learn: pip install 'estimator-appliance[sklearn]'. A "
            "trained one is evaluated, predicts and is exported without it.",
            name=error.name,
        ) from error
    return ensemble


def _forest_config(config: RunConfig | None) -> RunConfig:
    config = config or RunConfig()
    if config.save_checkpoints_secs or config.save_checkpoints_steps:
        return config.replace(save_checkpoints_secs=_NEVER_SECONDS)
    return config


def _check_alone(config: Any) -> None:
    """Refuse to train in a cluster: each process would grow a forest of a part of the data.

    Raises:
        ValueError: there are other workers or replicas.
    """
    if config.train_distribute is not None or config.num_worker_replicas > 1:
        raise ValueError(
            "A random forest is fitted by one process, which needs all of the data; the config has "
            f"{config.num_worker_replicas} workers and train_distribute={config.train_distribute}. Train "
            "without TF_CONFIG and without a distribution strategy; n_jobs=-1 uses all cores."
        )


def _checked_count(num_trees: int) -> int:
    if not isinstance(num_trees, int) or num_trees < 1:
        raise ValueError(f"num_trees must be a whole number of at least 1; got {num_trees!r}.")
    return num_trees


def _checked_columns(feature_columns: Any) -> list[Any]:
    columns = check_columns(feature_columns)
    for column in columns:
        if isinstance(column, fc.EmbeddingColumn | fc.SharedEmbeddingColumn):
            raise ValueError(
                f"A random forest cannot learn the embedding {column.name!r}. Use "
                "tf.feature_column.indicator_column in place of it."
            )
    return columns
