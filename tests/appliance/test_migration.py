"""Checkpoints cross over between tf.estimator and this library, both ways, with the same numbers."""

import json

import numpy as np
import pytest
import tensorflow as tf

from appliance import estimator
from tests.golden import migration


def assert_same(here, golden, where):
    """Compare nested numbers and texts; numbers to 1e-5."""
    if isinstance(golden, dict):
        assert here.keys() == golden.keys(), where
        for key, value in golden.items():
            assert_same(here[key], value, f"{where}/{key}")
    elif np.asarray(golden).dtype.kind == "U":
        assert here == golden, where
    else:
        np.testing.assert_allclose(here, golden, rtol=1e-5, atol=1e-5, err_msg=where)


@pytest.mark.parametrize("writer", ["tf_estimator", "appliance"])
@pytest.mark.parametrize("name", migration.NAMES)
def test_a_checkpoint_gives_here_what_it_gives_tf_estimator(writer, name):
    """Evaluated, predicted with, exported and trained on; tf.estimator's numbers for both writers."""
    folder = migration.STORED / writer
    golden = json.loads((folder / migration.NUMBERS).read_text())[name]
    assert_same(migration.use(estimator, name, folder / name), golden, name)


@pytest.mark.parametrize("name", migration.NAMES)
def test_checkpoints_written_now_are_as_those_that_tf_estimator_has_read(tmp_path, name):
    """Names, dtypes, shapes and values of all variables, for what tf.estimator wrote itself too."""
    migration.train(estimator, name, tmp_path)
    now = tf.train.load_checkpoint(str(tmp_path))
    for writer in ("appliance", "tf_estimator"):
        stored = tf.train.load_checkpoint(str(migration.STORED / writer / name))
        assert now.get_variable_to_shape_map() == stored.get_variable_to_shape_map()
        assert now.get_variable_to_dtype_map() == stored.get_variable_to_dtype_map()
        for variable in stored.get_variable_to_shape_map():
            np.testing.assert_allclose(
                now.get_tensor(variable), stored.get_tensor(variable), rtol=1e-4, atol=1e-5, err_msg=variable
            )
