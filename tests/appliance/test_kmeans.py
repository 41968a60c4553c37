"""K-means: numbers by hand, stopping, starting centers, and bad input."""

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import RunConfig
from appliance.estimator.experimental import KMeans

POINTS = np.array([[0, 0], [0, 2], [10, 0], [10, 2]], np.float32)


def batches(points, size=4, repeat=1):
    return lambda: tf.data.Dataset.from_tensor_slices(points).batch(size).repeat(repeat)


def test_full_batches_find_the_means_and_say_how_far_points_are():
    kmeans = KMeans(2, initial_clusters=POINTS[:3:2], use_mini_batch=False)
    kmeans.train(batches(POINTS), steps=1)
    np.testing.assert_allclose(kmeans.cluster_centers(), [[0, 1], [10, 1]], rtol=1e-5)
    assert kmeans.score(batches(POINTS)) == pytest.approx(4.0, rel=1e-5)
    assert list(kmeans.predict_cluster_index(batches(POINTS))) == [0, 0, 1, 1]
    [first, *_] = kmeans.transform(batches(POINTS))
    np.testing.assert_allclose(first, [1.0, np.sqrt(101)], rtol=1e-5)
    assert kmeans.score(batches(POINTS)) == kmeans.evaluate(batches(POINTS))["score"]


def test_mini_batches_with_iterations_assign_points_to_the_last_centers():
    """Two batches make an iteration; points move a copy of the centers, which takes over when it ends."""
    random = np.random.RandomState(0)
    points, steps, count = random.normal(size=(32, 2)).astype(np.float32), 5, 3
    kmeans = KMeans(count, initial_clusters=points[:count], mini_batch_steps_per_iteration=2)
    kmeans.train(batches(points, 16, None), steps=steps)
    centers = updated = points[:count].astype(np.float64)
    seen, left = np.zeros(count), 2
    for step in range(steps):
        batch = points[16 * (step % 2) :][:16]
        nearest = ((batch[:, None] - centers) ** 2).sum(-1).argmin(1)
        if left <= 0:
            centers, left, seen = updated.copy(), 1, np.zeros(count)
        else:
            left -= 1
        updated = updated.copy()
        for k in range(count):
            new = batch[nearest == k]
            seen[k] += len(new)
            updated[k] += (new.sum(0) - len(new) * updated[k]) / max(seen[k] + len(new), 1)
    np.testing.assert_allclose(kmeans.cluster_centers(), centers, rtol=1e-5)
    np.testing.assert_allclose(kmeans.get_variable_value("clusters_updated"), updated, rtol=1e-5)


def test_training_stops_when_the_loss_hardly_changes():
    kmeans = KMeans(2, initial_clusters=POINTS[:2], use_mini_batch=False, relative_tolerance=1e-3)
    kmeans.train(batches(POINTS, repeat=None), steps=50)
    assert kmeans.get_variable_value("global_step") < 10


def test_random_centers_come_from_as_many_batches_as_it_takes():
    kmeans = KMeans(3, seed=1, config=RunConfig(tf_random_seed=1))
    kmeans.train(batches(POINTS, 1, 2), steps=1)
    assert kmeans.cluster_centers().shape == (3, 2)


def test_a_function_chooses_centers_from_named_features():
    features = {"b": POINTS[:, 1:], "a": POINTS[:, :1].astype(np.int64)}
    kmeans = KMeans(2, initial_clusters=lambda batches, k: batches[0][:4:3], use_mini_batch=False)
    kmeans.train(batches(features, repeat=2), steps=1)
    np.testing.assert_allclose(kmeans.cluster_centers(), [[0, 1], [10, 1]], rtol=1e-5)


def test_data_that_ends_before_there_are_enough_centers_is_an_error():
    with pytest.raises(ValueError, match=r"ended before all initial cluster centers.*fewer clusters"):
        KMeans(9).train(batches(POINTS), steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: KMeans(2, initial_clusters="best"),
            "Unsupported initial_clusters: 'best'",
        ),
        (lambda: KMeans(2, distance_metric="l1"), "Unsupported distance_metric: 'l1'"),
        (lambda: KMeans(0), "num_clusters must be at least 1; got 0"),
        (lambda: KMeans(2).train(batches(np.array([["a"], ["b"]])), steps=1), "'points' is string of shape"),
        (
            lambda: KMeans(2).train(batches({"x": POINTS[:, 0]}), steps=1),
            r"is float32 of shape \(None,\)",
        ),
    ],
)
def test_bad_settings_and_points_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
