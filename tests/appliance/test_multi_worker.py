"""Training in step by several processes, all real: a chief, a worker, an evaluator."""

import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import RunConfig
from appliance.estimator.checkpoints import global_step
from appliance.estimator.estimator import Estimator
from tests.appliance.cluster_processes import Processes
from tests.appliance.mirrored_training import canned, columns, input_fn
from tests.appliance.models import line, linear_model_fn
from tests.appliance.synchronous_member import BATCH, STEPS
from tests.appliance.tiny_experiment import DEADLINE_SECONDS
from tests.waiting import wait_until

MODULE = "tests.appliance.synchronous_member"
WORKERS = ("chief", "worker")


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounds")
    with Processes(folder, WORKERS, MODULE, folder / "model", "rounds") as processes:
        processes.start(*WORKERS)
        return folder / "model", {task: processes.result(task) for task in WORKERS}


def test_two_workers_train_as_one_process_with_the_batch_of_both(rounds, tmp_path):
    """The chief's initial values are those of all; checkpoints have the same variables."""
    _, done = rounds
    single = canned(RunConfig(str(tmp_path), tf_random_seed=1))
    single.train(lambda: input_fn(2 * BATCH), max_steps=STEPS)
    values = done["chief"]["values"]
    assert done["worker"]["values"] == values
    assert sorted(values) == single.get_variable_names()
    for name, value in values.items():
        np.testing.assert_allclose(value, single.get_variable_value(name), 1e-5, 1e-6, err_msg=name)


def test_each_worker_reads_its_own_share(rounds):
    _, done = rounds
    assert done["chief"]["contexts"] == [[2, 0]]
    assert done["worker"]["contexts"] == [[2, 1]]


def test_all_workers_end_at_the_same_step(rounds):
    """At max_steps; when the data of one ends; when a hook of the chief, or of the worker, asks to stop."""
    _, done = rounds
    chief, worker = done["chief"], done["worker"]
    assert chief["seen"]["max_steps"] == worker["seen"]["max_steps"] == [1, 2, 3, 4, 5]
    first = 1
    for name, count in {"out_of_data": 2, "chief_stops": 3, "worker_stops": 3}.items():
        assert chief["seen"][name] == list(range(first, first + count)), name
        assert worker["seen"][name] == chief["seen"][name], name
        first += count
        # The chief has written the last checkpoint when the worker is done.
        assert chief["step"][name] == worker["step"][name] == first - 1, name


def test_a_worker_that_fails_ends_the_training_of_the_others(rounds):
    _, done = rounds
    chief, worker = done["chief"]["errors"], done["worker"]["errors"]
    assert worker["worker_fails"] == "ValueError: the hook of the worker has failed"
    assert chief["worker_fails"].startswith(
        "WorkerLost: Training in chief:0 ended, because another worker has failed."
    )
    assert "the disk of the worker is gone" in worker["worker_cannot_read"]
    assert chief["worker_cannot_read"].startswith("WorkerLost: ")
    assert "start all tasks again" in chief["worker_cannot_read"]
    assert set(chief) == set(worker) == {"worker_fails", "elsewhere", "worker_cannot_read"}


def test_only_the_chief_writes(rounds):
    model_dir, done = rounds
    assert (done["chief"]["chief"], done["worker"]["chief"]) == (True, False)
    assert len(list(model_dir.glob("events.out.tfevents.*"))) == 1
    # Either may evaluate and predict by itself.
    assert done["chief"]["metrics"] == done["worker"]["metrics"]
    assert done["chief"]["predicted"] == 96


def test_workers_must_share_the_checkpoints(rounds):
    _, done = rounds
    for task in WORKERS:
        assert re.match(
            r"ValueError: The workers see different checkpoints .* by worker: \[8, 'none'\]. Give all",
            done[task]["errors"]["elsewhere"],
        )


def test_moving_averages_are_means_over_the_workers(rounds):
    model_dir, done = rounds
    x = columns()[0]["x"][: 3 * 2 * BATCH].reshape(3, 2 * BATCH)
    expected = sum(x.mean(axis=1) / [8, 4, 2])
    assert done["chief"]["averages"] == done["worker"]["averages"] == [pytest.approx(expected)]
    checkpoint = tf.train.latest_checkpoint(f"{model_dir}_averages")
    saved = tf.train.load_variable(checkpoint, "batch_normalization/moving_mean")
    assert saved.tolist() == done["chief"]["averages"]


def test_the_evaluator_follows_the_chief(tmp_path):
    jobs = (*WORKERS, "evaluator")
    with Processes(tmp_path, jobs, MODULE, tmp_path / "model", "evaluated") as processes:
        processes.start(*jobs)
        assert processes.result("chief") is None
        assert processes.result("worker") is None
        assert processes.result("evaluator")["global_step"] == STEPS
    assert json.loads((tmp_path / "model" / "training_ended.json").read_text())["final"]


def test_training_goes_on_from_the_last_checkpoint_after_a_worker_was_killed(tmp_path):
    model_dir = str(tmp_path / "model")
    with Processes(tmp_path, WORKERS, MODULE, model_dir, "killed") as processes:
        processes.start(*WORKERS)
        wait_until(
            lambda: global_step(tf.train.latest_checkpoint(model_dir)) >= 5, "a checkpoint", DEADLINE_SECONDS
        )
        processes.running["worker"].kill()
        assert processes.running["chief"].wait(DEADLINE_SECONDS) != 0
        assert "WorkerLost: Training in chief:0 ended, because another worker is gone" in processes.log(
            "chief"
        )
    step = global_step(tf.train.latest_checkpoint(model_dir))
    with Processes(tmp_path, WORKERS, MODULE, model_dir, "killed") as processes:
        processes.start(*WORKERS)
        chief, worker = (processes.result(task) for task in WORKERS)
    assert chief == worker
    assert chief["seen"] == list(range(step + 1, step + 6))


def test_a_worker_does_not_wait_for_ever(tmp_path):
    with Processes(tmp_path, WORKERS, MODULE, tmp_path / "model", "lonely") as processes:
        processes.start("chief")
        assert re.search(
            r"another worker is gone \(.*timed out waiting for other workers\.\)", processes.result("chief")
        )


def test_a_strategy_of_another_cluster_is_refused(tmp_path, monkeypatch):
    with tf.Graph().as_default():
        alone = tf.distribute.MultiWorkerMirroredStrategy()
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    place = {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    config = RunConfig(str(tmp_path), train_distribute=alone)
    assert (config.is_chief, config.num_worker_replicas) == (False, 2)
    with pytest.raises(ValueError, match=r"of different clusters.*Set TF_CONFIG before either is made"):
        Estimator(linear_model_fn, config=config)
    monkeypatch.setenv("TF_CONFIG", json.dumps({**place, "cluster": {**cluster, "ps": ["localhost:3"]}}))
    with tf.Graph().as_default():
        served = tf.distribute.MultiWorkerMirroredStrategy()
    with pytest.raises(ValueError, match="'ps' task, which has no part in training"):
        Estimator(linear_model_fn, config=RunConfig(train_distribute=served))


def test_without_a_cluster_it_trains_alone(tmp_path):
    assert "TF_CONFIG" not in os.environ
    with tf.Graph().as_default():
        alone = tf.distribute.MultiWorkerMirroredStrategy()
    estimator = Estimator(linear_model_fn, config=RunConfig(str(tmp_path), train_distribute=alone), params={})
    estimator.train(line(), steps=2)
    assert estimator.get_variable_value("global_step") == 2
