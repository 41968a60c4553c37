"""learn_runner.run and the schedules of an Experiment that a cluster has."""

import json

import pytest

from appliance.estimator import Experiment, RunConfig, learn_runner
from appliance.estimator.estimator import Estimator
from tests.appliance.test_experiment import data_forever, evaluated_steps, make_experiment
from tests.appliance.tiny_experiment import data, model_fn


def experiment_fn(run_config, hparams):
    estimator = Estimator(model_fn, config=run_config, params={"rate": hparams})
    return Experiment(estimator, data_forever, lambda: data(1), train_steps=3, eval_steps=None)


@pytest.fixture
def task(monkeypatch):
    def set_task(name, index=0):
        cluster = {job: ["localhost:1"] for job in ("chief", "worker", "ps")}
        place = {"cluster": cluster, "task": {"type": name, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(place))

    return set_task


def test_on_one_machine_it_trains_and_evaluates(tmp_path):
    config = RunConfig(model_dir=str(tmp_path / "a"))
    metrics, _ = learn_runner.run(experiment_fn, run_config=config, hparams=0.01)
    assert metrics["global_step"] == 3
    old_form = learn_runner.run(lambda output_dir: make_experiment(output_dir), str(tmp_path / "b"), "train")
    assert old_form.get_variable_value("global_step") == 25


@pytest.mark.parametrize(
    ("role", "schedule"),
    [
        ("chief", "train"),
        ("worker", "train"),
        ("ps", "run_std_server"),
        ("evaluator", "continuous_eval"),
    ],
)
def test_in_a_cluster_it_does_the_part_of_the_task(tmp_path, task, monkeypatch, role, schedule):
    task(role)
    done = []

    def do(experiment):
        done.append((schedule, experiment.estimator.params))
        return "done"

    monkeypatch.setattr(Experiment, schedule, do)
    config = RunConfig(model_dir=str(tmp_path))
    assert learn_runner.run(experiment_fn, run_config=config, hparams=0.5) == "done"
    assert done == [(schedule, {"rate": 0.5})]


def test_bad_arguments_are_told(tmp_path):
    config = RunConfig(model_dir=str(tmp_path))
    for arguments, error, message in (
        ({"experiment_fn": 3}, TypeError, "experiment_fn must be callable"),
        ({}, ValueError, "Must specify an output directory"),
        ({"output_dir": "a", "run_config": config}, ValueError, "Cannot provide both"),
        ({"output_dir": "a", "hparams": 3}, ValueError, "hparams need a run_config"),
        ({"run_config": RunConfig()}, ValueError, "Must specify model_dir"),
        ({"run_config": 3}, TypeError, "run_config must be a RunConfig"),
        ({"run_config": config, "schedule": "dance"}, ValueError, "has no schedule 'dance'. It has: conti"),
        ({"run_config": config, "schedule": "_follow"}, ValueError, "has no schedule '_follow'"),
        ({"run_config": config, "experiment_fn": lambda run_config, hparams: 3}, TypeError, "must return an"),
    ):
        with pytest.raises(error, match=message):
            learn_runner.run(**{"experiment_fn": experiment_fn, "hparams": None, **arguments})


def test_checkpoints_can_be_evaluated_on_the_training_data(tmp_path):
    experiment = make_experiment(tmp_path, eval_delay_secs=0, eval_steps=2)
    experiment.train()
    assert experiment.continuous_eval_on_train_data()["global_step"] == 25
    assert evaluated_steps(tmp_path / "eval_continuous_on_train_data") == [25]
    asked = []

    def go_on(metrics):
        asked.append(metrics)
        return False

    other = make_experiment(tmp_path, eval_delay_secs=0)
    assert other.continuous_eval_on_train_data(continuous_eval_predicate_fn=go_on, name="none") is None
    assert asked == [None]


def test_workers_join_as_the_global_step_grows(tmp_path, task, monkeypatch):
    """The delay of TF.Learn: nothing for the first worker, 5545 steps for the second, 8788 for the third."""
    task("worker")
    hooks = {}
    monkeypatch.setattr(Estimator, "train", lambda self, **given: hooks.update({"hooks": given["hooks"]}))
    monkeypatch.setattr("appliance.estimator.experiment.start_server", lambda config: None)
    experiment = make_experiment(tmp_path, delay_workers_by_global_step=True)
    for index, step in ((0, 0), (1, 5545), (2, 8788)):
        monkeypatch.setattr(experiment.estimator.__class__, "config", _Config(index))
        experiment.train()
        assert [hook._wait_until_step for hook in hooks["hooks"]] == [step]


class _Config:
    """A worker's config."""

    cluster_spec = True
    is_chief = False
    task_type = "worker"
    train_distribute = None

    def __init__(self, task_id):
        self.task_id = task_id

    def __get__(self, instance, owner):
        return self


def test_a_server_needs_a_cluster(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="this process is no task of a cluster"):
        make_experiment(tmp_path).run_std_server()
    place = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    with pytest.raises(ValueError, match="this process alone"):
        make_experiment(tmp_path).run_std_server()
