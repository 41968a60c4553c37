"""Hooks that stop training by what evaluations wrote, and evaluation inside the training process."""

import contextlib
import json

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import (
    Estimator,
    EvalSpec,
    LoggingTensorHook,
    RunConfig,
    StopAtStepHook,
    TrainSpec,
    experimental,
    train_and_evaluate,
)
from appliance.estimator.hooks.stopping import StopAtCheckpoint, StopWhen, StopWithChief
from appliance.estimator.summaries import scalar_events, write_evaluation
from tests.appliance.models import line, linear_model_fn

CHIEF = {
    "cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]},
    "task": {"type": "chief", "index": 0},
}


def make(model_dir, rate=0.1, **options):
    config = RunConfig(model_dir=str(model_dir), tf_random_seed=1, **options)
    return Estimator(linear_model_fn, config=config, params={"learning_rate": rate})


def evaluations(estimator, losses, name=None):
    """Write event files as evaluations do: the loss by global step."""
    with tf.Graph().as_default():
        for step, loss in losses.items():
            write_evaluation(estimator.eval_dir(name), {"loss": loss}, step, None)


def steps_of(estimator, hook):
    """Train with the hook, to step 20 at most; return the step that was reached."""
    estimator.train(line(repeat=None), hooks=[hook], max_steps=20)
    return estimator.get_variable_value("global_step")


FALLING = {0: 9.0, 10: 5.0, 20: 4.0, 30: 4.5, 40: 4.2}
RISING = {step: 10 - loss for step, loss in FALLING.items()}


@pytest.mark.parametrize(
    ("maker", "losses", "argument", "options", "stops"),
    [
        ("stop_if_higher_hook", RISING, 5.5, {}, True),
        ("stop_if_higher_hook", RISING, 6.0, {}, False),
        ("stop_if_higher_hook", FALLING, 5.5, {"min_steps": 10}, False),
        ("stop_if_lower_hook", FALLING, 4.1, {}, True),
        ("stop_if_lower_hook", FALLING, 4.0, {}, False),
        ("stop_if_no_decrease_hook", FALLING, 20, {}, True),
        ("stop_if_no_decrease_hook", FALLING, 21, {}, False),
        ("stop_if_no_decrease_hook", FALLING, 20, {"min_steps": 30}, False),
        ("stop_if_no_increase_hook", RISING, 20, {}, True),
        ("stop_if_no_increase_hook", FALLING, 40, {"min_steps": 10}, False),
        ("stop_if_no_increase_hook", FALLING, 30, {"min_steps": 10}, True),
    ],
)
def test_the_metric_decides_whether_training_stops(tmp_path, maker, losses, argument, options, stops):
    """They read real event files; a limit is crossed strictly, a standstill counts from its first step."""
    estimator = make(tmp_path)
    evaluations(estimator, losses)
    hook = getattr(experimental, maker)(
        estimator, "loss", argument, run_every_secs=None, run_every_steps=5, **options
    )
    assert hook._should_stop_fn() is stops


def test_training_ends_when_an_evaluation_in_between_says_so(tmp_path):
    """With train_and_evaluate in one process; the last checkpoint has no variable of the hook's."""
    estimator = make(tmp_path, save_checkpoints_steps=5)
    hook = experimental.stop_if_lower_hook(estimator, "loss", 0.3, run_every_secs=None, run_every_steps=1)
    metrics, _ = train_and_evaluate(
        estimator,
        TrainSpec(line(repeat=None), max_steps=200, hooks=[hook]),
        EvalSpec(line(), throttle_secs=0),
    )
    losses = {step: scalars["loss"] for step, scalars in scalar_events(f"{estimator.eval_dir()}/*")}
    low = min(step for step, loss in losses.items() if loss < 0.3)
    assert 5 < low < 100
    # The evaluation of a checkpoint comes after the hook's turn, which sees it one step later.
    assert sorted(losses) == [*range(5, low + 1, 5), low + 1]
    assert metrics["global_step"] == low + 1
    assert estimator.get_variable_names() == ["bias", "global_step", "weight"]


def test_the_function_is_asked_at_the_first_step_and_then_as_often_as_told(tmp_path):
    estimator = make(tmp_path)
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) == 3

    hook = experimental.make_early_stopping_hook(
        estimator, should_stop, run_every_secs=None, run_every_steps=4
    )
    assert steps_of(estimator, hook) == 9
    seldom = experimental.make_early_stopping_hook(estimator, lambda: False, run_every_secs=1000)
    assert steps_of(estimator, seldom) == 20
    # Outside of this library's loop it is a hook like any other.
    asked.clear()
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        advance = step.assign_add(1).op
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                session.run(advance)
                if session.should_stop():
                    break
        assert len(asked) == 3


def test_an_unknown_metric_or_a_bad_argument_is_told(tmp_path):
    estimator = make(tmp_path)
    evaluations(estimator, {3: 1.0}, name="other")
    hook = experimental.stop_if_lower_hook(
        estimator, "auc", 1, estimator.eval_dir("other"), run_every_secs=None, run_every_steps=1
    )
    with pytest.raises(ValueError, match=r"step 3 in .*eval_other has no metric 'auc'. It has: \['loss'\]"):
        steps_of(estimator, hook)
    with pytest.raises(ValueError, match="Only one of `run_every_secs` and `run_every_steps`"):
        experimental.stop_if_lower_hook(estimator, "loss", 1, run_every_steps=1)
    with pytest.raises(TypeError, match="must have type `Estimator`"):
        experimental.stop_if_lower_hook(object(), "loss", 1)
    with pytest.raises(TypeError, match="`should_stop_fn` must be callable"):
        experimental.make_early_stopping_hook(estimator, True)
    with pytest.raises(ValueError, match="last_step must be specified"):
        experimental.make_stop_at_checkpoint_step_hook(estimator, None)


def test_in_a_cluster_workers_stop_with_their_chief():
    """Both hooks share one variable; here in one graph, where a cluster has it on a parameter server."""
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        advance = step.assign_add(1).op
        answers = iter([False, True])
        chief = StopWhen(lambda: next(answers), None, 1, tells_workers=True)
        chief.begin()
        worker = StopWithChief()
        worker.begin()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for expected in (False, True):
                context = tf.compat.v1.train.SessionRunContext(None, session)
                results = session.run(chief.before_run(context).fetches)
                session.run(advance)
                chief.after_run(context, tf.compat.v1.train.SessionRunValues(results, None, None))
                assert context.stop_requested is expected
                other = tf.compat.v1.train.SessionRunContext(None, session)
                results = session.run(worker.before_run(other).fetches)
                worker.after_run(other, tf.compat.v1.train.SessionRunValues(results, None, None))
                assert other.stop_requested is expected


def test_the_hook_for_each_role_is_chosen(tmp_path, monkeypatch):
    estimator = make(tmp_path)
    assert type(experimental.make_stop_at_checkpoint_step_hook(estimator, 5)) is StopAtStepHook
    for task, kinds in (
        ({"type": "chief", "index": 0}, (StopWhen, StopAtStepHook)),
        ({"type": "worker", "index": 0}, (StopWithChief, StopAtCheckpoint)),
    ):
        monkeypatch.setenv("TF_CONFIG", json.dumps({**CHIEF, "task": task}))
        member = make(tmp_path / task["type"])
        early = experimental.make_early_stopping_hook(member, lambda: False)
        assert type(early) is kinds[0]
        assert type(experimental.make_stop_at_checkpoint_step_hook(member, 5)) is kinds[1]
        with pytest.raises(ValueError, match="supports only single machine"):
            experimental.InMemoryEvaluatorHook(member, line())


def test_a_worker_waits_for_the_checkpoint_of_the_last_step():
    newest = iter([0, 5])
    with tf.Graph().as_default(), contextlib.closing(tf.compat.v1.Session()) as session:
        tf.compat.v1.train.create_global_step()
        hook = StopAtCheckpoint(lambda: next(newest), last_step=5, wait_secs=0)
        hook.begin()
        stops = []
        for before in (3, 4, 5):
            context = tf.compat.v1.train.SessionRunContext(None, session)
            hook.after_run(context, tf.compat.v1.train.SessionRunValues(before, None, None))
            stops.append(context.stop_requested)
    assert stops == [False, False, True]


def test_training_is_evaluated_in_memory_as_checkpoints_would_be(tmp_path):
    """At the start, every few steps, and at the end; the numbers are those of `evaluate`."""
    estimator = make(tmp_path)
    logged = LoggingTensorHook(["mean_absolute_error/value:0"], at_end=True)
    hook = experimental.InMemoryEvaluatorHook(
        estimator, line(batch=3), hooks=[logged], name="memory", every_n_iter=4
    )
    estimator.train(line(repeat=None), hooks=[hook], steps=10)
    found = dict(scalar_events(f"{estimator.eval_dir('memory')}/*"))
    assert sorted(found) == [0, 4, 8, 10]
    assert found[0]["loss"] > found[4]["loss"] > found[8]["loss"]
    expected = estimator.evaluate(line(batch=3))
    for key in ("loss", "mae"):
        np.testing.assert_allclose(found[10][key], expected[key], rtol=1e-6)
    # A second training, and one that takes its evaluation data batch by batch.
    few = experimental.InMemoryEvaluatorHook(estimator, line(repeat=None), steps=2, every_n_iter=100)
    estimator.train(line(repeat=None), hooks=[hook, few], steps=1)
    assert max(step for step, _ in scalar_events(f"{estimator.eval_dir('memory')}/*")) == 11
    assert max(step for step, _ in scalar_events(f"{estimator.eval_dir()}/*")) == 11


def test_in_memory_evaluation_refuses_models_with_their_own_way_to_load(tmp_path):
    def with_init_fn(features, labels, mode):
        spec = linear_model_fn(features, labels, mode, {})
        scaffold = tf.compat.v1.train.Scaffold(init_fn=lambda scaffold, session: None)
        return spec._replace(scaffold=scaffold)

    estimator = Estimator(with_init_fn, model_dir=str(tmp_path))
    hook = experimental.InMemoryEvaluatorHook(estimator, line())
    with pytest.raises(ValueError, match="does not support custom init_fn"):
        estimator.train(line(), hooks=[hook])
    with pytest.raises(ValueError, match="every_n_iter must be positive"):
        experimental.InMemoryEvaluatorHook(estimator, line(), every_n_iter=0)


def test_a_logit_fn_gets_what_it_takes_and_must_return_tensors():
    def logit_fn(features, params):
        return features * params

    with tf.Graph().as_default():
        logits = experimental.call_logit_fn(logit_fn, tf.constant(2.0), "train", 3.0, None)
        with tf.compat.v1.Session() as session:
            assert session.run(logits) == 6.0
        with pytest.raises(ValueError, match="logit_fn should return a Tensor"):
            experimental.call_logit_fn(lambda features, mode: {mode: 3}, None, "train", None, None)
