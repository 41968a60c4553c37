"""tf.data's tuner is off where it has nothing to tune, and only there."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from appliance.estimator import Estimator
from appliance.estimator.tuning import untuned
from tests.appliance.models import line, linear_model_fn

AUTOTUNE = tf.data.AUTOTUNE


def numbers():
    return tf.data.Dataset.from_tensor_slices([1, 2, 3]).shuffle(3).repeat().batch(2)


def tuned():
    options = tf.data.Options()
    options.autotune.enabled = True
    return numbers().with_options(options)


@pytest.mark.parametrize(
    ("make", "enabled"),
    [
        (numbers, False),
        (lambda: numbers().map(lambda x: x + 1).prefetch(2), False),
        (lambda: tf.data.Dataset.zip((numbers(), numbers().prefetch(1))), False),
        (lambda: numbers().prefetch(AUTOTUNE), None),
        (lambda: numbers().prefetch(tf.cast(tf.compat.v1.placeholder(tf.int32, []), tf.int64)), None),
        (lambda: tf.data.Dataset.zip((numbers(), numbers().prefetch(AUTOTUNE))), None),
        (lambda: numbers().map(lambda x: x + 1, num_parallel_calls=AUTOTUNE), None),
        (lambda: numbers().interleave(tf.data.Dataset.from_tensors, num_parallel_calls=AUTOTUNE), None),
        (lambda: numbers().flat_map(lambda x: tf.data.Dataset.from_tensors(x).prefetch(AUTOTUNE)), None),
        (tuned, True),
    ],
    ids=[
        "nothing to tune",
        "sizes are given",
        "both parts",
        "prefetch",
        "prefetch of a size that is not known yet",
        "in a part",
        "parallel map",
        "interleave",
        "within",
        "chosen",
    ],
)
def test_the_tuner_stays_where_there_is_something_to_tune_or_somebody_wants_it(make, enabled):
    with tf.Graph().as_default():
        last = tf.data.experimental.to_variant(untuned(make())).op
        assert (tuner(last) if last.type == "OptionsDataset" else None) is enabled


def test_an_estimator_reads_its_data_without_the_tuner(tmp_path):
    found = []

    class SeesOptions(tf.compat.v1.train.SessionRunHook):
        def begin(self):
            operations = tf.compat.v1.get_default_graph().get_operations()
            found.extend(operation for operation in operations if operation.type == "OptionsDataset")

    Estimator(linear_model_fn, model_dir=str(tmp_path)).train(line(), hooks=[SeesOptions()])
    assert tuner(found[-1]) is False


def tuner(operation):
    options = dataset_options_pb2.Options.FromString(operation.get_attr("serialized_options"))
    return options.autotune_options.enabled
