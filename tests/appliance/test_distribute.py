"""Training on several devices: a MirroredStrategy on two virtual CPUs, in a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.distribute_config import DistributeConfig

from appliance.estimator import LinearRegressor, RunConfig
from appliance.estimator.estimator import Estimator
from appliance.estimator.experimental import KMeans, LinearSDCA
from tests.appliance.models import line, linear_model_fn


def test_two_replicas_train_as_one_with_the_doubled_batch(tmp_path):
    """A canned model with two optimizers, one with a v1 optimizer, a head with a named one, and layers of
    Keras: variables, optimizer state and evaluation are equal, and the checkpoint has the same names."""
    command = [sys.executable, "-m", "tests.appliance.mirrored_training", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (mirrored, single) in json.loads(done.stdout).items():
        assert mirrored["values"].keys() == single["values"].keys(), name
        assert mirrored["values"]["global_step"] == 6
        for variable, value in single["values"].items():
            if variable.endswith("moving_variance"):  # It is of a smaller batch in each replica.
                continue
            np.testing.assert_allclose(
                mirrored["values"][variable], value, rtol=1e-5, atol=1e-6, err_msg=f"{name}: {variable}"
            )
        assert mirrored["metrics"] == pytest.approx(single["metrics"], rel=1e-5), name


def test_what_cannot_be_distributed_is_told(tmp_path, monkeypatch):
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(ValueError, match="must have the attributes train_distribute and eval_distribute"):
        RunConfig(experimental_distribute=one)
    with pytest.raises(ValueError, match=r"Either `eval_distribute` or `experimental_distribute\.eval_"):
        RunConfig(eval_distribute=one, experimental_distribute=DistributeConfig(eval_distribute=one))
    with pytest.raises(ValueError, match=r"remote_cluster is not supported: .* once for each task"):
        RunConfig(experimental_distribute=DistributeConfig(one, remote_cluster={"worker": ["a:1"]}))
    with pytest.raises(ValueError, match=r"eval_distribute is not supported for .*MirroredStrategy"):
        Estimator(linear_model_fn, config=RunConfig(eval_distribute=object()))
    with pytest.raises(ValueError, match=r"train_distribute is not supported for .*MirroredStrategy"):
        Estimator(linear_model_fn, config=RunConfig(train_distribute=object()))
    estimator = Estimator(
        linear_model_fn, config=RunConfig(model_dir=str(tmp_path), train_distribute=one), params={}
    )
    with pytest.raises(ValueError, match=r"an input_fn must return a tf\.data\.Dataset"):
        estimator.train(lambda: ({"x": tf.ones([1, 1])}, tf.ones([1, 1])))
    estimator.train(line(), steps=2)
    assert estimator.get_variable_value("global_step") == 2
    place = {"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    with pytest.raises(ValueError, match="is for one machine, but TF_CONFIG describes a cluster"):
        Estimator(linear_model_fn, config=RunConfig(train_distribute=one))


def test_strategies_may_come_in_one_object(tmp_path):
    one, other = tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.OneDeviceStrategy("/cpu:0")
    config = RunConfig(str(tmp_path), experimental_distribute=DistributeConfig(one, other))
    assert (config.train_distribute, config.eval_distribute) == (one, other)
    for later in (config.replace(tf_random_seed=1), RunConfig().replace(experimental_distribute=config)):
        assert (later.train_distribute, later.eval_distribute) == (one, other)
    estimator = Estimator(linear_model_fn, config=config, params={})
    estimator.train(line(), steps=2)
    assert estimator.evaluate(line(), steps=1)["global_step"] == 2


def test_models_whose_steps_cannot_be_summed_train_with_one_replica():
    # There is one CPU; without this the strategy is refused where a graph has started TensorFlow.
    tf.config.set_soft_device_placement(True)
    config = RunConfig(train_distribute=tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
    with pytest.raises(ValueError, match=r"KMeans is trained by one replica, but .* makes 2"):
        KMeans(2, config=config).train(lambda: line()().map(lambda x, y: x))
    x, optimizer = tf.feature_column.numeric_column("x"), LinearSDCA("id")
    with pytest.raises(ValueError, match="LinearSDCA is trained by one replica"):
        LinearRegressor([x], optimizer=optimizer, config=config).train(line())
