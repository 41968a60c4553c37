"""K-means clustering, on all points at once or in mini-batches.

References:
    Lloyd, Least squares quantization in PCM, IEEE Transactions on Information Theory 28, 1982.
    Sculley, Web-Scale K-Means Clustering, WWW 2010, for mini-batches.
    Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, SODA 2007.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import clustering_ops

from appliance.estimator.checks import check_one_replica
from appliance.estimator.estimator import Estimator
from appliance.estimator.export import PredictOutput
from appliance.estimator.feature_columns import dense_input
from appliance.estimator.feature_inputs import FeatureInputs
from appliance.estimator.heads.metrics import mean
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.run_config import RunConfig

_RETRY_SECONDS = 1.0


class KMeans(Estimator):
    """K-means clustering.

    With `use_mini_batch=False` each step is one iteration of Lloyd's algorithm, and each batch must hold all
    points. Otherwise each step moves the centers towards the means of one batch, with a rate that falls with
    the number of points that a center has seen; with `mini_batch_steps_per_iteration` above 1 points are
    assigned to the centers of the last iteration, which ends after so many steps.

    The input_fn returns points without labels: a float32 tensor `[batch, dimensions]`, or a dict of such
    tensors, which are put side by side in the order of their names.

    Args:
        num_clusters: how many clusters; not used when `initial_clusters` gives the centers.
        model_dir, config: as for `Estimator`.
        initial_clusters: the centers, `[num_clusters, dimensions]`; or `KMeans.RANDOM_INIT`, points of the
            first batches; or `KMeans.KMEANS_PLUS_PLUS_INIT`, points of the first batch, which must have at
            least `num_clusters`; or a function from a list of one batch of points, and k, to at most k
            centers, which is called with batch after batch until there are enough.
        distance_metric: `KMeans.SQUARED_EUCLIDEAN_DISTANCE` or `KMeans.COSINE_DISTANCE`.
        seed: of the choice of the initial centers.
        use_mini_batch, mini_batch_steps_per_iteration: see above.
        kmeans_plus_plus_num_retries: how many more points k-means++ draws for each center, of which it takes
            the best; negative for a number that grows with the logarithm of the clusters.
        relative_tolerance: training stops when the loss changes by less than this share of itself from one
            step to the next; meant for `use_mini_batch=False`.
        feature_columns: dense columns that make the points from the features; None for all features.

    Raises:
        ValueError: an argument is out of range or unknown.

    Source: `tf.compat.v1.estimator.experimental.KMeans`.
    """

    SQUARED_EUCLIDEAN_DISTANCE = clustering_ops.SQUARED_EUCLIDEAN_DISTANCE
    COSINE_DISTANCE = clustering_ops.COSINE_DISTANCE
    RANDOM_INIT = clustering_ops.RANDOM_INIT
    KMEANS_PLUS_PLUS_INIT = clustering_ops.KMEANS_PLUS_PLUS_INIT
    SCORE = "score"
    CLUSTER_INDEX = "cluster_index"
    ALL_DISTANCES = "all_distances"
    CLUSTER_CENTERS_VAR_NAME = "clusters"

    def __init__(
        self,
        num_clusters: int,
        model_dir: str | None = None,
        initial_clusters: Any = RANDOM_INIT,
        distance_metric: str = SQUARED_EUCLIDEAN_DISTANCE,
        seed: int | None = None,
        use_mini_batch: bool = True,
        mini_batch_steps_per_iteration: int = 1,
        kmeans_plus_plus_num_retries: int = 2,
        relative_tolerance: float | None = None,
        config: RunConfig | None = None,
        feature_columns: Sequence[Any] | None = None,
    ) -> None:
        _check_choice("initial_clusters", initial_clusters, (self.RANDOM_INIT, self.KMEANS_PLUS_PLUS_INIT))
        metrics = (self.SQUARED_EUCLIDEAN_DISTANCE, self.COSINE_DISTANCE)
        _check_choice("distance_metric", str(distance_metric), metrics)
        for name, value in (
            ("num_clusters", num_clusters),
            ("mini_batch_steps_per_iteration", mini_batch_steps_per_iteration),
        ):
            if not tf.is_tensor(value) and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}.")
        self._distance_metric = distance_metric

        def cluster(points: tf.Tensor) -> _Clustering:
            return _Clustering(
                points,
                num_clusters,
                initial_clusters=initial_clusters,
                distance_metric=distance_metric,
                use_mini_batch=use_mini_batch,
                mini_batch_steps_per_iteration=mini_batch_steps_per_iteration,
                random_seed=seed,
                kmeans_plus_plus_num_retries=kmeans_plus_plus_num_retries,
            )

        super().__init__(
            _kmeans_model_fn(cluster, feature_columns, relative_tolerance), model_dir=model_dir, config=config
        )

    def predict_cluster_index(self, input_fn: Callable[..., Any]) -> Iterator[int]:
        """Yield the index of the closest center of each point."""
        for row in self.predict(input_fn, predict_keys=[self.CLUSTER_INDEX]):
            yield row[self.CLUSTER_INDEX]

    def score(self, input_fn: Callable[..., Any]) -> Any:
        """Return the sum of the squared distances (or cosine distances) of the points of the first batch to
        their closest centers.
        """
        return self.evaluate(input_fn, steps=1)[self.SCORE]

    def transform(self, input_fn: Callable[..., Any]) -> Iterator[np.ndarray]:
        """Yield the distances of each point to all centers, `[num_clusters]`: Euclidean (not squared) or
        cosine.
        """
        for row in self.predict(input_fn, predict_keys=[self.ALL_DISTANCES]):
            distances = row[self.ALL_DISTANCES]
            if self._distance_metric == self.SQUARED_EUCLIDEAN_DISTANCE:
                # Rounding can bring the square of a distance below zero.
                distances = np.sqrt(np.maximum(distances, 0))
            yield distances

    def cluster_centers(self) -> np.ndarray:
        """Return the centers, `[num_clusters, dimensions]`, from the newest checkpoint.

        Raises:
            ValueError: there is no checkpoint.
        """
        return np.asarray(self.get_variable_value(self.CLUSTER_CENTERS_VAR_NAME))


class _Clustering(clustering_ops.KMeans):
    """TensorFlow's k-means graph, with an order where it leaves several operations on a variable to chance.

    The order is that in which they ran under TensorFlow 2.15, whose results this gives.
    """

    def _infer_graph(self, inputs: Sequence[tf.Tensor], clusters: tf.Tensor) -> Any:
        inferred = list(super()._infer_graph(inputs, clusters))
        self._assigned = inferred[2]
        return inferred

    def _mini_batch_sync_updates_op(self, *variables: Any) -> Any:
        # The points are assigned to the centers of the iteration that ends, not of the next.
        with tf.control_dependencies(self._assigned):
            return super()._mini_batch_sync_updates_op(*variables)

    def _mini_batch_training_op(
        self, inputs: Sequence[tf.Tensor], cluster_idx_list: Any, cluster_centers: Any, total_counts: Any
    ) -> Any:
        """Move each center x by `(sum of its k new points - k x) / (n + k)`; n counts the new points too."""
        updates = []
        for points, assigned in zip(inputs, cluster_idx_list, strict=True):
            ids, position = tf.unique(tf.reshape(assigned, [-1]))
            size = tf.size(ids)
            new = tf.math.unsorted_segment_sum(tf.ones_like(position, tf.int64), position, size)
            weights = tf.expand_dims(tf.cast(new, points.dtype), 1)
            count = tf.raw_ops.ResourceScatterAdd(resource=total_counts.handle, indices=ids, updates=new)
            with tf.control_dependencies([count]):
                counts = tf.gather(total_counts, ids)
            sums = tf.math.unsorted_segment_sum(points, position, size)
            rate = 1.0 / (tf.expand_dims(tf.cast(counts, points.dtype), 1) + weights)
            move = (sums - weights * tf.gather(cluster_centers, ids)) * rate
            updates.append(
                tf.raw_ops.ResourceScatterAdd(resource=cluster_centers.handle, indices=ids, updates=move)
            )
        return tf.group(*updates)


def _check_choice(argument: str, given: Any, known: Sequence[str]) -> None:
    if isinstance(given, str) and given not in known:
        raise ValueError(f"Unsupported {argument}: {given!r}. Use one of {', '.join(map(repr, known))}.")


def _kmeans_model_fn(
    cluster: Callable[[tf.Tensor], _Clustering],
    feature_columns: Sequence[Any] | None,
    relative_tolerance: float | None,
) -> Callable[[Any, str, Any], EstimatorSpec]:
    def model_fn(features: Any, mode: str, config: Any) -> EstimatorSpec:
        if mode == ModeKeys.TRAIN:
            check_one_replica("KMeans")
        training = cluster(_points(features, feature_columns)).training_graph()
        all_distances, indices, distances, is_initialized, initialize, update = training
        loss = tf.reduce_sum(distances)
        tf.compat.v1.summary.scalar("loss/raw", loss)
        with tf.control_dependencies([update]):
            # Not earlier: the run in which the data ends is no step.
            count = tf.compat.v1.train.get_or_create_global_step().assign_add(1, read_value=False)
        hooks: list[Any] = [_InitialClusters(initialize, is_initialized, config.is_chief)]
        if relative_tolerance is not None:
            hooks.append(_StopOnSmallChange(loss, relative_tolerance))
        return EstimatorSpec(
            mode,
            predictions={KMeans.ALL_DISTANCES: all_distances[0], KMeans.CLUSTER_INDEX: indices[0]},
            loss=loss,
            train_op=count,
            eval_metric_ops={KMeans.SCORE: mean(loss, None, KMeans.SCORE)},
            training_hooks=hooks,
            export_outputs={
                KMeans.ALL_DISTANCES: PredictOutput(all_distances[0]),
                KMeans.CLUSTER_INDEX: PredictOutput(indices[0]),
                "serving_default": PredictOutput(indices[0]),
            },
        )

    return model_fn


def _points(features: Any, feature_columns: Sequence[Any] | None) -> tf.Tensor:
    """Return the points, float32 `[batch, dimensions]`.

    Raises:
        ValueError: a feature is no matrix of numbers.
    """
    if feature_columns:
        with tf.compat.v1.variable_scope("input_layer"):
            return dense_input(FeatureInputs(features), feature_columns)[0]
    given = features if isinstance(features, Mapping) else {"points": features}
    tensors = [_matrix(key, given[key]) for key in sorted(given)]
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=1)


def _matrix(key: str, feature: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(feature)
    numeric = tensor.dtype.is_floating or tensor.dtype.is_integer
    if tensor.shape.rank not in (None, 2) or not numeric:
        raise ValueError(
            f"KMeans takes numbers of shape [batch, dimensions]; the feature {key!r} is {tensor.dtype.name} "
            f"of shape {tensor.shape}. Reshape or convert it in the input_fn, or name the features to "
            "cluster by with feature_columns."
        )
    return tf.cast(tensor, tf.float32)


class _InitialClusters(tf.compat.v1.train.SessionRunHook):
    """Chooses the initial centers, from as many batches as that takes; workers wait for the chief."""

    def __init__(self, initialize: Any, is_initialized: Any, is_chief: bool) -> None:
        self._initialize = initialize
        self._is_initialized = is_initialized
        self._is_chief = is_chief

    def after_create_session(self, session: Any, coord: Any) -> None:
        while not session.run(self._is_initialized):
            if not self._is_chief:
                time.sleep(_RETRY_SECONDS)
                continue
            try:
                session.run(self._initialize)
            except tf.errors.OutOfRangeError as error:
                raise ValueError(
                    "The data ended before all initial cluster centers were chosen. Give an input_fn with "
                    "more points than clusters, or fewer clusters."
                ) from error


class _StopOnSmallChange(tf.compat.v1.train.SessionRunHook):
    """Stops training when the loss changes by less than a share of itself from one step to the next."""

    def __init__(self, loss: tf.Tensor, tolerance: float) -> None:
        self._loss = loss
        self._tolerance = tolerance
        self._before: float | None = None

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        loss = float(run_values.results)
        if self._before is not None and abs(loss - self._before) / (1 + abs(self._before)) < self._tolerance:
            run_context.request_stop()
        self._before = loss
