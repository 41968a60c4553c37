"""What input_fns may return, and arrays that stay out of the GraphDef."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig
from appliance.estimator.input_graph import build_inputs, host_fed_constants
from tests.appliance.models import linear_model_fn

MEGABYTE = 1 << 20


def values_of(make):
    """Return what tensors made by `make()` in a host-fed graph evaluate to, and the size of the GraphDef."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        with host_fed_constants(graph):
            tensor = make()
        return session.run(tensor), len(graph.as_graph_def().SerializeToString())


@pytest.mark.parametrize(
    "value",
    [
        np.arange(300_000, dtype=np.float32).reshape(3, -1),
        np.arange(300_000, dtype=np.int64)[::2],
        np.arange(300_000, dtype=np.float64).reshape(300, 1000).T,
        np.arange(300_000) % 2 == 0,
        list(range(300_000)),
        [float(i) for i in range(300_000)],
    ],
    ids=["float32", "strided int64", "transposed float64", "bool", "list of int", "list of float"],
)
def test_large_constants_have_the_value_and_dtype_that_tensorflow_gives(value):
    got, size = values_of(lambda: tf.constant(value))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        expected = session.run(tf.constant(value))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    assert size < 2000


@pytest.mark.parametrize("kind", [np.str_, np.bytes_, object, list])
def test_large_string_constants_become_bytes(kind):
    words = [f"wört {i}" for i in range(30_000)]
    value = (
        words
        if kind is list
        else np.array(
            [word.encode() for word in words] if kind is np.bytes_ else words,
            dtype=None if kind is np.bytes_ else kind,
        )
    )
    got, size = values_of(lambda: tf.constant(value))
    assert got[7] == "wört 7".encode()
    assert len(got) == 30_000
    assert size < 2000


def test_dtype_and_shape_of_a_large_constant_are_honoured():
    value = np.arange(300_000)
    got, _ = values_of(lambda: tf.constant(value, tf.float32, [300, 1000]))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, value.astype(np.float32).reshape(300, 1000))


def test_constants_of_other_graphs_and_small_ones_are_left_alone():
    with tf.Graph().as_default() as graph, host_fed_constants(graph):
        assert tf.constant([1.0, 2.0]).op.type == "Const"
        with tf.Graph().as_default():
            assert tf.constant(np.zeros(MEGABYTE)).op.type == "Const"
    with graph.as_default():
        assert tf.constant(np.zeros(MEGABYTE)).op.type == "Const"


def test_arrays_used_inside_dataset_functions_stay_out_too():
    table = np.arange(MEGABYTE, dtype=np.float32)

    def make():
        dataset = tf.data.Dataset.range(5, 8).map(lambda index: tf.gather(table, index))
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        with tf.control_dependencies([iterator.initializer]):
            return tf.identity(iterator.get_next())

    value, size = values_of(make)
    assert value == 5
    assert size < 20_000


def test_80_megabytes_give_a_graph_of_kilobytes_and_are_released(tmp_path):
    """Training on arrays does not copy them into the graph, and holds nothing once the call is over."""
    graphs, kept = [], []

    def model_fn(features, labels, mode, params):
        graphs.append(tf.compat.v1.get_default_graph())
        return linear_model_fn({"x": features["x"][:, :1]}, labels, mode, params)

    def train():
        x = np.random.default_rng(0).random((1_000_000, 20), dtype=np.float32)
        kept.append(weakref.ref(x))

        def input_fn():
            return tf.data.Dataset.from_tensor_slices(({"x": x}, x[:, :1])).batch(32)

        model = Estimator(model_fn, config=RunConfig(str(tmp_path)))
        model.train(input_fn, steps=2)
        model.evaluate(input_fn, steps=2)

    train()
    assert max(len(graph.as_graph_def().SerializeToString()) for graph in graphs) < 100_000
    graphs.clear()
    gc.collect()
    assert kept[0]() is None
    assert max(path.stat().st_size for path in tmp_path.iterdir() if path.is_file()) < MEGABYTE


def test_the_data_can_be_started_again():
    with tf.Graph().as_default():
        inputs = build_inputs(
            lambda: tf.data.Dataset.from_tensor_slices(np.arange(MEGABYTE, dtype=np.float32)).batch(2), {}
        )
        with tf.compat.v1.Session() as session:
            for _ in range(2):
                session.run(inputs.initializer)
                assert session.run(inputs.features).tolist() == [0, 1]
            assert inputs.labels is None


def test_an_input_fn_may_return_tensors(tmp_path):
    def input_fn():
        return {"x": tf.constant([[1.0]])}, tf.constant([[3.0]])

    model = Estimator(linear_model_fn, config=RunConfig(str(tmp_path)))
    model.train(input_fn, steps=3)
    assert model.get_variable_value("global_step") == 3
    assert next(model.predict(input_fn))["y"].shape == (1,)


def test_queue_based_input_ends_training_when_it_ends(tmp_path):
    def input_fn():
        x = tf.compat.v1.train.limit_epochs(tf.ones([4, 1]), num_epochs=2)
        batch = tf.compat.v1.train.batch([x], batch_size=2, enqueue_many=True)
        return {"x": batch}, 3 * batch

    model = Estimator(linear_model_fn, config=RunConfig(str(tmp_path)))
    model.train(input_fn)
    assert model.get_variable_value("global_step") == 4


def test_a_tuple_of_three_is_refused(tmp_path):
    def input_fn():
        return tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)

    with pytest.raises(ValueError, match="tuple of length 2"):
        Estimator(linear_model_fn, config=RunConfig(str(tmp_path))).train(input_fn, steps=1)


def test_labels_are_ignored_in_predict(tmp_path):
    def model_fn(features, labels, mode):
        assert labels is None
        return EstimatorSpec(ModeKeys.PREDICT, predictions=features)

    def input_fn():
        return tf.data.Dataset.from_tensors(([1.0, 2.0], [3.0, 4.0]))

    assert list(Estimator(model_fn, str(tmp_path)).predict(input_fn)) == [1.0, 2.0]
