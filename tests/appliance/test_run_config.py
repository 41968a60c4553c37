"""RunConfig: defaults, replacing, validation, TF_CONFIG."""

import json
from pathlib import Path

import pytest
import tensorflow as tf

from appliance.estimator.run_config import RunConfig


@pytest.fixture
def tf_config(monkeypatch):
    def write(**content):
        monkeypatch.setenv("TF_CONFIG", json.dumps(content))

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return write


CLUSTER = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1", "h4:1"]}


def test_defaults_are_those_of_tf_estimator(tf_config):
    config = RunConfig()
    assert (config.model_dir, config.tf_random_seed, config.save_summary_steps) == (None, None, 100)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours) == (5, 10000)
    assert (config.log_step_count_steps, config.session_creation_timeout_secs) == (100, 7200)
    assert (config.task_type, config.task_id, config.is_chief, config.master) == ("worker", 0, True, "")
    assert (config.num_worker_replicas, config.num_ps_replicas, config.global_id_in_cluster) == (1, 0, 0)


def test_one_way_to_time_checkpoints_clears_the_other(tf_config):
    assert RunConfig(save_checkpoints_steps=10).save_checkpoints_secs is None
    with pytest.raises(ValueError, match="cannot be both set"):
        RunConfig(save_checkpoints_steps=10, save_checkpoints_secs=10)
    changed = RunConfig().replace(save_checkpoints_steps=5)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs) == (5, None)
    back = changed.replace(save_checkpoints_secs=7)
    assert (back.save_checkpoints_steps, back.save_checkpoints_secs) == (None, 7)
    with pytest.raises(ValueError, match="cannot be both set"):
        changed.replace(save_checkpoints_steps=1, save_checkpoints_secs=1)


def test_replace_leaves_the_original_and_refuses_unknown_properties(tf_config):
    config = RunConfig(model_dir="a")
    assert config.replace(model_dir=Path("b")).model_dir == "b"
    assert config.model_dir == "a"
    with pytest.raises(ValueError, match="Replacing master is not supported"):
        config.replace(master="x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_dir", ""),
        ("save_summary_steps", -1),
        ("save_checkpoints_steps", -1),
        ("keep_checkpoint_max", -1),
        ("keep_checkpoint_every_n_hours", 0),
        ("log_step_count_steps", 0),
        ("tf_random_seed", 1.5),
        ("session_config", {}),
        ("device_fn", lambda x: "/cpu:0"),
        ("protocol", "carrier pigeon"),
        ("session_creation_timeout_secs", 0),
    ],
)
def test_values_out_of_range_are_named(tf_config, field, value):
    with pytest.raises(ValueError, match=field):
        RunConfig(**{field: value})


def test_model_dir_of_tf_config_must_agree(tf_config):
    tf_config(model_dir="/a")
    assert RunConfig().model_dir == "/a"
    assert RunConfig(model_dir="/a").model_dir == "/a"
    with pytest.raises(ValueError, match="same value"):
        RunConfig(model_dir="/b")


@pytest.mark.parametrize(
    ("task", "index", "global_id", "master", "chief"),
    [
        ("chief", 0, 0, "grpc://h0:1", True),
        ("worker", 1, 2, "grpc://h2:1", False),
        ("ps", 1, 4, "grpc://h4:1", False),
    ],
)
def test_place_in_a_cluster(tf_config, task, index, global_id, master, chief):
    tf_config(cluster=CLUSTER, task={"type": task, "index": index})
    config = RunConfig()
    assert (config.task_type, config.task_id) == (task, index)
    assert (config.global_id_in_cluster, config.master, config.is_chief) == (global_id, master, chief)
    assert (config.num_worker_replicas, config.num_ps_replicas) == (3, 2)
    assert config.cluster_spec == tf.train.ClusterSpec(CLUSTER)
    assert "/job:ps" in config.session_config.device_filters


def test_evaluator_is_outside_the_cluster(tf_config):
    tf_config(cluster=CLUSTER, task={"type": "evaluator", "index": 3})
    config = RunConfig()
    assert (config.task_type, config.task_id, config.master, config.is_chief) == ("evaluator", 3, "", False)
    assert (config.num_worker_replicas, config.num_ps_replicas, config.global_id_in_cluster) == (0, 0, None)
    assert not config.cluster_spec


def test_legacy_master_leads_the_cluster(tf_config):
    cluster = {"master": ["h0:1"], "worker": ["h1:1"], "ps": ["h2:1"]}
    tf_config(cluster=cluster, task={"type": "master", "index": 0})
    assert RunConfig().is_chief
    tf_config(cluster=cluster, task={"type": "evaluator", "index": 0})
    with pytest.raises(ValueError, match="`evaluator` is not supported"):
        RunConfig()
    tf_config(cluster={**cluster, "chief": ["h3:1"]}, task={"type": "master", "index": 0})
    with pytest.raises(ValueError, match="`chief` is not supported"):
        RunConfig()


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        ({"worker": ["a:1"]}, {"type": "worker", "index": 0}, 'one "chief" node'),
        ({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}, 'only one "chief"'),
        (CLUSTER, {"index": 0}, "task type must be set"),
        (CLUSTER, {"type": "chief"}, "task index must be set"),
        (CLUSTER, {"type": "chief", "index": -1}, "non-negative"),
        (CLUSTER, {"type": "cook", "index": 0}, "not a valid task_type"),
        (CLUSTER, {"type": "worker", "index": 2}, "not a valid task_id"),
        ({}, {"type": "ps", "index": 0}, "must be WORKER"),
        ({}, {"type": "worker", "index": 1}, "must be 0"),
    ],
)
def test_impossible_places_are_refused(tf_config, cluster, task, message):
    tf_config(cluster=cluster, task=task)
    with pytest.raises(ValueError, match=message):
        RunConfig()
