"""Training by several processes: parameter servers, chief, worker and evaluator, all real."""

import json

import pytest
import tensorflow as tf

from appliance.estimator import EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from appliance.estimator.cluster_tasks import AnnouncedEnd, announced_end, worker_delay_seconds
from appliance.estimator.estimator import Estimator
from appliance.estimator.evaluation_policy import TrainingEnd
from tests.appliance.cluster_processes import Processes
from tests.appliance.models import line, linear_model_fn


def test_a_cluster_trains_one_model_until_its_chief_stops_all(tmp_path):
    """Chief and worker train together on the variables of the parameter server; without max_steps the
    worker hears of the end through the shared variable, and the evaluator by the chief's file."""
    jobs, module = ("ps", "chief", "worker"), "tests.appliance.cluster_member"
    with Processes(tmp_path, jobs, module, tmp_path / "model", 400) as processes:
        processes.start("chief", "worker", "ps", "evaluator")
        assert processes.result("chief") is None
        assert processes.result("worker") is None
        metrics = processes.result("evaluator")
        assert processes.running["ps"].poll() is None
    checkpoint = tf.train.latest_checkpoint(str(tmp_path / "model"))
    assert metrics["global_step"] == tf.train.load_variable(checkpoint, "global_step") >= 400
    assert metrics["loss"] < 0.1
    assert 1.8 < tf.train.load_variable(checkpoint, "weight") < 2.1
    assert tf.train.load_variable(checkpoint, "signal_early_stopping/STOP")


def test_the_end_of_a_training_is_known_until_another_goes_on(tmp_path):
    signals = AnnouncedEnd(str(tmp_path), check_interval_secs=0)
    assert signals.ended() is None
    estimator = Estimator(linear_model_fn, model_dir=str(tmp_path), params={})
    with announced_end(str(tmp_path)):
        estimator.train(line(), steps=1)
        assert signals.ended() is None
    assert signals.ended() == TrainingEnd(final=True)
    with pytest.raises(OSError), announced_end(str(tmp_path)):
        raise OSError("the disk is gone")
    assert signals.ended() == TrainingEnd(final=False)
    estimator.train(line(), steps=1)
    assert signals.ended() is None


def test_workers_begin_one_after_the_other(monkeypatch):
    cluster = {"chief": ["a:1"], "ps": ["a:2"], "worker": [f"b:{port}" for port in range(1, 21)]}
    for task, index, longest, expected in (
        ("chief", 0, None, 0),
        ("worker", 0, None, 5),
        ("worker", 1, None, 10),
        ("worker", 19, None, 60),
        ("worker", 19, 7, 7),
    ):
        place = {"cluster": cluster, "task": {"type": task, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(place))
        assert worker_delay_seconds(RunConfig(experimental_max_worker_delay_secs=longest)) == expected


def test_a_cluster_without_parameter_servers_is_refused(tmp_path, monkeypatch):
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    place = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    estimator = Estimator(linear_model_fn, model_dir=str(tmp_path), params={})
    with pytest.raises(ValueError, match=r'has no parameter server.*Add a "ps" task'):
        train_and_evaluate(estimator, TrainSpec(line()), EvalSpec(line()))
