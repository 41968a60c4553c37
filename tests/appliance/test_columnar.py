"""Datasets over arrays give the same batches when they are gathered column by column."""

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator.columnar import columnar

COLUMNS = {
    "number": np.arange(10, dtype=np.float32),
    "matrix": np.arange(40).reshape(10, 2, 2),
    "word": np.array([f"w{i}" for i in range(10)], dtype=object),
}


def slices():
    return tf.data.Dataset.from_tensor_slices((COLUMNS, np.arange(10)))


def batches(make, rewrite):
    """Return all batches, the operations that make them, and their spec."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(3)
        dataset = rewrite(make())
        operations, operation = [], tf.data.experimental.to_variant(dataset).op
        while operation.inputs and operation.inputs[0].dtype == tf.variant:
            operations.append(operation.type)
            operation = operation.inputs[0].op
        operations.append(operation.type)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        element = iterator.get_next()
        session.run(iterator.initializer)
        found = []
        while True:
            try:
                found.append(session.run(element))
            except tf.errors.OutOfRangeError:
                return found, operations, dataset.element_spec


def same(make):
    expected, _, expected_spec = batches(make, lambda dataset: dataset)
    got, operations, spec = batches(make, columnar)
    assert spec == expected_spec
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)
    return operations


@pytest.mark.parametrize(
    "make",
    [
        lambda: slices().batch(4),
        lambda: slices().batch(4, drop_remainder=True),
        lambda: slices().shuffle(5, seed=1).repeat(2).batch(4).prefetch(1),
        lambda: slices().shuffle(10).repeat(3).batch(3),
        lambda: slices().repeat(2).shuffle(20, seed=2, reshuffle_each_iteration=False).batch(4),
        lambda: slices().shard(2, 1).skip(1).take(3).batch(2).repeat(2),
        lambda: slices().batch(2).batch(2).take(1),
        lambda: slices().batch(3).shuffle(2, seed=4),
        lambda: tf.data.Dataset.from_tensor_slices(COLUMNS["number"]).batch(3),
    ],
)
def test_batches_of_array_rows_are_gathered_and_the_same(make):
    operations = same(make)
    assert "TensorSliceDataset" not in operations
    assert operations[-1] == "RangeDataset"


@pytest.mark.parametrize(
    "make",
    [
        lambda: slices(),
        lambda: slices().map(lambda features, label: (features, label + 1)).batch(4),
        lambda: slices().filter(lambda features, label: label > 3).batch(4),
        lambda: slices().padded_batch(4),
        lambda: tf.data.Dataset.range(10).batch(4),
        lambda: tf.data.Dataset.from_tensor_slices(tf.sparse.eye(4)).batch(2),
    ],
)
def test_other_datasets_are_left_as_they_are(make):
    with tf.Graph().as_default():
        dataset = make()
        assert columnar(dataset) is dataset


def test_options_are_kept():
    def make():
        options = tf.data.Options()
        options.deterministic = True
        return slices().with_options(options).batch(4)

    assert "OptionsDataset" in same(make)
