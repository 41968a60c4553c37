"""Experiment and train_and_evaluate: training and evaluation that take turns in one process."""

import os

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import CheckpointSaverListener, StopAtStepHook
from appliance.estimator.estimator import Estimator
from appliance.estimator.experiment import Experiment
from appliance.estimator.export import build_raw_serving_input_receiver_fn
from appliance.estimator.export_strategy import ExportStrategy, make_export_strategy
from appliance.estimator.exporters import Exporter, FinalExporter, LatestExporter
from appliance.estimator.specs import EvalSpec, TrainSpec
from appliance.estimator.training import train_and_evaluate
from tests.appliance.tiny_experiment import config, data, model_fn


def receiver_fn():
    return build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 1], tf.float32)})()


def make_estimator(model_dir):
    return Estimator(model_fn, config=config(model_dir), params={"rate": 0.01})


def make_experiment(model_dir, **options):
    options = {"train_steps": 25, "eval_steps": None, **options}
    return Experiment(make_estimator(model_dir), data_forever, lambda: data(1), **options)


def data_forever():
    return data(None)


def evaluated_steps(eval_dir):
    return sorted(
        {
            event.step
            for path in tf.io.gfile.glob(f"{eval_dir}/*.tfevents.*")
            for event in tf.compat.v1.train.summary_iterator(path)
            if any(value.tag == "loss" for value in event.summary.value)
        }
    )


class Recorder(Exporter):
    name = "recorder"

    def __init__(self):
        self.calls = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        self.calls.append((int(eval_result["global_step"]), is_the_final_export))
        assert export_path == os.path.join(estimator.model_dir, "export", self.name)


def test_train_and_evaluate_alternates_and_exports_as_tf_estimator_does(tmp_path):
    """Each checkpoint but the first is evaluated; the export is the final one when max_steps is reached."""
    recorder = Recorder()
    eval_spec = EvalSpec(
        lambda: data(1),
        throttle_secs=0,
        exporters=[recorder, LatestExporter("latest", receiver_fn), FinalExporter("final", receiver_fn)],
    )
    estimator = make_estimator(tmp_path)
    metrics, exports = train_and_evaluate(estimator, TrainSpec(data_forever, max_steps=25), eval_spec)
    assert recorder.calls == [(10, False), (20, False), (25, True)]
    assert metrics["global_step"] == 25
    assert exports[0] is None
    assert exports[2].startswith(f"{tmp_path}/export/final/1".encode())
    assert len(os.listdir(tmp_path / "export" / "latest")) == 3

    # The step is reached already: there is nothing to train, so nothing to evaluate.
    assert train_and_evaluate(estimator, TrainSpec(data_forever, max_steps=25), eval_spec) == (None, None)


def test_train_and_evaluate_throttles_evaluations_and_never_exports_finally_without_max_steps(tmp_path):
    recorder = Recorder()
    train_and_evaluate(
        make_estimator(tmp_path),
        TrainSpec(lambda: data(35), hooks=[StopAtStepHook(last_step=33)]),
        EvalSpec(lambda: data(1), throttle_secs=3600, exporters=recorder),
    )
    assert recorder.calls == [(10, False), (33, False)]


def test_train_and_evaluate_refuses_what_are_no_estimator_and_specs(tmp_path):
    train_spec, eval_spec = TrainSpec(data_forever), EvalSpec(lambda: data(1))
    estimator = make_estimator(tmp_path)
    for arguments, name in (
        ((object(), train_spec, eval_spec), "estimator"),
        ((estimator, eval_spec, eval_spec), "train_spec"),
        ((estimator, train_spec, train_spec), "eval_spec"),
    ):
        with pytest.raises(TypeError, match=f"^{name} must be of type"):
            train_and_evaluate(*arguments)


def test_specs_check_their_arguments():
    train, evaluate = TrainSpec(data_forever), EvalSpec(data_forever)
    assert (train.max_steps, train.hooks, train.saving_listeners) == (None, (), ())
    assert (evaluate.steps, evaluate.name, evaluate.hooks, evaluate.exporters) == (100, None, (), ())
    assert (evaluate.start_delay_secs, evaluate.throttle_secs) == (120, 600)
    for make, error, message in (
        (lambda: TrainSpec(3), TypeError, "input_fn must be callable"),
        (lambda: TrainSpec(data_forever, max_steps=0), ValueError, "max_steps must be positive"),
        (lambda: TrainSpec(data_forever, hooks=[1]), TypeError, "hooks must all be .*SessionRunHook"),
        (lambda: TrainSpec(data_forever, saving_listeners=[1]), TypeError, "saving_listeners must all be"),
        (lambda: EvalSpec(data_forever, steps=-1), ValueError, "steps must be positive"),
        (lambda: EvalSpec(data_forever, name=1), TypeError, "name must be a string"),
        (lambda: EvalSpec(data_forever, start_delay_secs=-1), ValueError, "start_delay_secs must not"),
        (lambda: EvalSpec(data_forever, throttle_secs=-1), ValueError, "throttle_secs must not"),
    ):
        with pytest.raises(error, match=message):
            make()


def test_an_experiment_trains_and_evaluates_in_turns(tmp_path):
    """Strategies export at the end; one that judges by the result, and exporters, after each evaluation."""
    judged, saved = [], []

    class Listener(CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(int(global_step_value))

    recorder = Recorder()
    experiment = make_experiment(
        tmp_path,
        export_strategies=[
            make_export_strategy(receiver_fn),
            ExportStrategy("judge", lambda e, base, eval_result: judged.append(eval_result["global_step"])),
            recorder,
        ],
        saving_listeners=[Listener()],
    )
    metrics, exports = experiment.train_and_evaluate()
    assert saved == [0, 10, 20, 25]
    assert judged == [10, 20, 25]
    assert recorder.calls == [(10, False), (20, False), (25, True)]
    assert metrics["global_step"] == 25
    assert exports[0].startswith(f"{tmp_path}/export/Servo/1")
    assert exports[1:] == [None, None]
    assert len(os.listdir(tmp_path / "export" / "Servo")) == 1
    # A further call finds everything done.
    assert experiment.train_and_evaluate() == (metrics, exports)
    assert evaluated_steps(tmp_path / "eval") == [10, 20, 25]


def test_an_experiment_evaluates_as_often_as_it_is_told(tmp_path):
    make_experiment(tmp_path / "a", min_eval_frequency=20, train_steps=45).train_and_evaluate()
    assert evaluated_steps(tmp_path / "a" / "eval") == [20, 40, 45]
    make_experiment(tmp_path / "b", min_eval_frequency=0).train_and_evaluate()
    assert evaluated_steps(tmp_path / "b" / "eval") == [25]


def test_an_experiment_can_train_in_iterations_until_its_last_step_or_its_user_ends_it(tmp_path):
    steps = make_experiment(tmp_path / "a", train_steps_per_iteration=10)
    metrics, _ = steps.continuous_train_and_eval()
    assert evaluated_steps(tmp_path / "a" / "eval") == [10, 20, 25]
    assert metrics["global_step"] == 25
    asked = make_experiment(tmp_path / "b")
    metrics, _ = asked.continuous_train_and_eval(lambda metrics: not metrics or metrics["global_step"] < 6)
    assert metrics["global_step"] == 6
    short = Experiment(make_estimator(tmp_path / "c"), no_data, lambda: data(1), train_steps=25)
    with pytest.raises(ValueError, match="no data to train with"):
        short.continuous_train_and_eval()


def no_data():
    return data(0)


def test_the_verbs_of_an_experiment_each_do_their_part(tmp_path):
    experiment = make_experiment(tmp_path, export_strategies=make_export_strategy(receiver_fn))
    assert experiment.test()["global_step"] == 1
    assert len(os.listdir(tmp_path / "export" / "Servo")) == 1
    experiment.extend_train_hooks([StopAtStepHook(last_step=7)])
    assert experiment.train() is experiment.estimator
    metrics = experiment.evaluate(name="once")
    assert metrics["global_step"] == 7
    assert evaluated_steps(tmp_path / "eval_once") == [7]
    assert np.isfinite(metrics["loss"])


def test_eval_metrics_are_added_to_those_of_the_model(tmp_path):
    def largest(labels, predictions, config):
        error = tf.compat.v1.metrics.mean_absolute_error(labels, tf.zeros_like(labels))
        return {"largest": tf.compat.v1.metrics.mean(tf.reduce_max(labels)), config.model_dir: error}

    experiment = make_experiment(tmp_path, eval_metrics=largest, train_steps=1)
    metrics = experiment.train().evaluate(lambda: data(1))
    assert (metrics["largest"], metrics[str(tmp_path)]) == (4.0, 3.0)
    with pytest.raises(ValueError, match=r"metric_fn may take .* with \['other'\]"):
        make_experiment(tmp_path, eval_metrics=lambda other: {})


def test_continuous_eval_follows_another_process_to_the_last_step(tmp_path):
    make_experiment(tmp_path).train()
    experiment = make_experiment(
        tmp_path, eval_delay_secs=0, export_strategies=make_export_strategy(receiver_fn)
    )
    assert experiment.continuous_eval()["global_step"] == 25
    assert evaluated_steps(tmp_path / "eval_continuous") == [25]
    assert len(os.listdir(tmp_path / "export" / "Servo")) == 1
    endless = make_experiment(tmp_path, train_steps=None, eval_delay_secs=0, check_interval_secs=0)
    assert endless.continuous_eval(continuous_eval_predicate_fn=lambda metrics: metrics is None, name="other")


def test_an_experiment_checks_its_arguments(tmp_path):
    with pytest.raises(TypeError, match="estimator must have the methods of an Estimator"):
        Experiment(object(), data_forever, data_forever)
    for option in ("min_eval_frequency", "check_interval_secs", "eval_delay_secs"):
        with pytest.raises(ValueError, match=r"must not be negative. Received: -1"):
            make_experiment(tmp_path, **{option: -1})
    with pytest.raises(ValueError, match="train_steps_per_iteration must be positive"):
        make_experiment(tmp_path, train_steps_per_iteration=0)
    with pytest.raises(TypeError, match="must be an Exporter"):
        make_experiment(tmp_path, export_strategies=[3])
