"""Evaluation on several devices: the metrics are those of one device, to the last bit."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf

from appliance.estimator import RunConfig
from appliance.estimator.estimator import Estimator
from appliance.estimator.experimental import InMemoryEvaluatorHook
from appliance.estimator.summaries import scalar_events
from tests.appliance.models import line, linear_model_fn


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("evaluations"))
    command = [sys.executable, "-m", "tests.appliance.mirrored_evaluation", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", ["canned", "custom"])
def test_metrics_do_not_depend_on_the_number_of_devices(results, program):
    """For numbers of examples that end in the middle of a batch, and of a round of the replicas; metrics of
    heads, of TensorFlow, of Keras, and one that the order of the batches matters to."""
    one = results[program]["1"]
    assert results[program]["2"] == one
    assert results[program]["3"] == one
    assert len({tuple(metrics.values()) for metrics in one}) == len(one)


def test_a_step_takes_a_batch_for_each_replica(results):
    assert results["steps"]["2"] == results["steps"]["3"] == results["steps"]["1"]


def test_evaluation_takes_turns_with_mirrored_training(results):
    assert results["in_between"]["2"] == results["in_between"]["3"] == results["in_between"]["1"]
    assert results["in_between"]["1"]["global_step"] == 3


def test_one_device_is_a_strategy_too(tmp_path):
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    plain, placed = (
        Estimator(linear_model_fn, config=RunConfig(str(tmp_path), eval_distribute=strategy), params={})
        for strategy in (None, one)
    )
    hook = InMemoryEvaluatorHook(placed, line(), every_n_iter=2, name="hook")
    placed.train(line(), steps=2, hooks=[hook])
    metrics = placed.evaluate(line())
    assert metrics == plain.evaluate(line())
    *_, (step, seen) = scalar_events(f"{placed.eval_dir('hook')}/*")
    assert (step, seen["loss"]) == (2, pytest.approx(metrics["loss"]))
    with pytest.raises(ValueError, match=r"With eval_distribute an input_fn must return a tf\.data\.Dataset"):
        placed.evaluate(lambda: ({"x": tf.ones([1, 1])}, tf.ones([1, 1])))
    with pytest.raises(ValueError, match="no data to evaluate"):
        placed.evaluate(line(count=0))
