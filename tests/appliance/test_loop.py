"""Hooks: their life cycle, what they are given, and when they are called."""

import pytest
import tensorflow as tf

from appliance import estimator as lib
from appliance.estimator import Estimator, RunConfig, SessionRunArgs, SessionRunHook
from tests.appliance.models import line, linear_model_fn


class Recorder(SessionRunHook):
    """Writes down each call; `before_run` returns what `request(count)` gives."""

    def __init__(self, request=lambda count: None, stop_after=None, fail_after=None):
        self.calls, self.results, self.contexts = [], [], []
        self.request, self.stop_after, self.fail_after = request, stop_after, fail_after

    def begin(self):
        self.calls.append("begin")
        self.graph_was_open = not tf.compat.v1.get_default_graph().finalized

    def after_create_session(self, session, coord):
        self.calls.append("after_create_session")
        self.step_at_start = session.run(tf.compat.v1.train.get_global_step())

    def before_run(self, run_context):
        self.calls.append("before_run")
        return self.request(self.calls.count("before_run"))

    def after_run(self, run_context, run_values):
        self.calls.append("after_run")
        self.results.append(run_values.results)
        self.contexts.append(run_context)
        if self.fail_after == len(self.results):
            raise KeyError("broken hook")
        if self.stop_after == len(self.results):
            run_context.request_stop()

    def end(self, session):
        self.calls.append("end")
        self.step_at_end = session.run(tf.compat.v1.train.get_global_step())


@pytest.fixture
def estimator(tmp_path):
    return Estimator(linear_model_fn, config=RunConfig(str(tmp_path), tf_random_seed=1))


def step_tensor():
    return tf.compat.v1.train.get_global_step()


def test_life_cycle_of_a_hook_in_training(estimator):
    hook = Recorder()
    estimator.train(line(repeat=None), hooks=[hook], steps=2)
    assert hook.calls == ["begin", "after_create_session", *["before_run", "after_run"] * 2, "end"]
    assert hook.graph_was_open
    assert (hook.step_at_start, hook.step_at_end) == (0, 2)
    assert hook.results == [None, None]


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_life_cycle_of_a_hook_in_evaluation_and_prediction(estimator, verb):
    hook = Recorder()
    outcome = getattr(estimator, verb)(line(count=8, batch=4), hooks=[hook])
    list(outcome)
    # The third run finds the end of the data: the hook was asked, but there is nothing to tell.
    ran = [*["before_run", "after_run"] * 2, "before_run"]
    assert hook.calls == ["begin", "after_create_session", *ran, "end"]


def test_end_is_not_called_when_training_fails(estimator):
    hook, broken = Recorder(), Recorder(fail_after=2)
    with pytest.raises(KeyError, match="broken hook"):
        estimator.train(line(repeat=None), hooks=[hook, broken], steps=5)
    assert "end" not in hook.calls
    assert hook.calls.count("after_run") == 2


def test_end_is_called_when_the_data_ends(estimator):
    hook = Recorder()
    estimator.train(line(count=8, batch=4), hooks=[hook])
    assert hook.calls[-1] == "end"
    assert hook.step_at_end == 2


def test_request_stop_ends_training_after_the_step(estimator):
    estimator.train(line(repeat=None), hooks=[Recorder(stop_after=3)], steps=10)
    assert estimator.get_variable_value("global_step") == 3


def test_a_hook_gets_what_it_asks_for_on_the_steps_it_asks(estimator):
    def every_second(count):
        return SessionRunArgs({"step": step_tensor(), "list": [step_tensor()]}) if count % 2 == 0 else None

    hook = Recorder(every_second)
    estimator.train(line(repeat=None), hooks=[hook], steps=4)
    asked = [result for result in hook.results if result is not None]
    assert [hook.results[0], hook.results[2]] == [None, None]
    assert [set(result) for result in asked] == [{"step", "list"}] * 2
    assert [len(result["list"]) for result in asked] == [1, 1]


def test_feeds_of_a_hook_reach_the_step(estimator):
    def feeding(features, labels, mode, params):
        scale = tf.compat.v1.placeholder_with_default(1.0, [], name="scale")
        return linear_model_fn(features, labels * scale, mode, params)

    model = Estimator(feeding, model_dir=estimator.model_dir)
    model.train(line(repeat=None), steps=1, hooks=[lib.FeedFnHook(lambda: {"scale:0": 0.0})])
    assert model.get_variable_value("weight") == 0
    twice = [lib.FeedFnHook(lambda: {"scale:0": 0.0}), lib.FeedFnHook(lambda: {"scale:0": 1.0})]
    with pytest.raises(RuntimeError, match="fed by two hooks"):
        model.train(line(repeat=None), steps=1, hooks=twice)


def test_options_of_a_hook_give_metadata(estimator):
    traced = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)

    class Tracing(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs(None, options=traced)

        def after_run(self, run_context, run_values):
            self.devices = len(run_values.run_metadata.step_stats.dev_stats)
            self.level = run_values.options.trace_level

    hook = Tracing()
    estimator.train(line(repeat=None), hooks=[hook], steps=1)
    assert hook.devices > 0
    assert hook.level == tf.compat.v1.RunOptions.FULL_TRACE


def test_the_context_names_the_original_fetches_and_the_session(estimator):
    hook = Recorder()
    estimator.train(line(repeat=None), hooks=[hook], steps=2)
    context, last = hook.contexts
    assert len(context.original_args.fetches) == 2
    assert context.session is not None
    assert (context.stop_requested, last.stop_requested) == (False, True)


def test_own_schedule_calls_tensorflows_hooks_at_the_steps_that_monitored_session_would(tmp_path):
    """The same hooks act at the same steps here and in TensorFlow's own loop, fast path or not."""

    class Saves(lib.CheckpointSaverListener):
        def __init__(self):
            self.steps = []

        def after_save(self, session, global_step_value):
            self.steps.append(int(global_step_value))

    def logged(lines):
        return lib.LoggingTensorHook(
            ["global_step:0"], every_n_iter=3, formatter=lambda values: lines.append(1) or "logged"
        )

    def run(folder, extra):
        config = RunConfig(
            str(folder), save_checkpoints_steps=4, save_summary_steps=3, log_step_count_steps=5
        )
        saves, lines = Saves(), []
        Estimator(linear_model_fn, config=config).train(
            line(repeat=None), hooks=[logged(lines), *extra], steps=11, saving_listeners=[saves]
        )
        return saves.steps, len(lines)

    saves, lines = [], []
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        add = step.assign_add(1)
        listener = Saves()
        saver = lib.CheckpointSaverHook(str(tmp_path / "tf"), save_steps=4, listeners=[listener])
        hooks = [logged(lines), saver, lib.StopAtStepHook(11)]
        scaffold = tf.compat.v1.train.Scaffold(saver=tf.compat.v1.train.Saver())
        saver._scaffold = scaffold
        with tf.compat.v1.train.SingularMonitoredSession(hooks, scaffold) as session:
            while not session.should_stop():
                session.run(add)
    saves = listener.steps
    assert run(tmp_path / "fast", []) == (saves, len(lines))
    assert run(tmp_path / "slow", [Recorder(lambda count: SessionRunArgs(step_tensor()))]) == (
        saves,
        len(lines),
    )
    assert saves == [0, 4, 8, 11]


def test_ordinary_steps_call_no_hook_of_the_framework(estimator, monkeypatch):
    """Between two due steps a step is one prepared callable: no before_run, no after_run, no session.run."""
    calls = []
    for hook in (
        lib.CheckpointSaverHook,
        lib.LoggingTensorHook,
        lib.NanTensorHook,
        lib.StepCounterHook,
        lib.StopAtStepHook,
        lib.SummarySaverHook,
    ):
        for method in ("before_run", "after_run"):
            original = getattr(hook, method)

            def counted(self, *args, original=original):
                calls.append(type(self).__name__)
                return original(self, *args)

            monkeypatch.setattr(hook, method, counted)
    estimator.train(line(repeat=None), steps=90)
    # Log, summaries and counter begin at the first step, the stop comes at the last.
    assert len(calls) <= 8, calls


def test_progress_is_logged_with_its_facts(tmp_path, caplog):
    caplog.set_level("INFO", "appliance.estimator")
    config = RunConfig(str(tmp_path), log_step_count_steps=2)
    Estimator(linear_model_fn, config=config).train(line(repeat=None), steps=4)
    lines = {name: [r for r in caplog.records if r.message == name] for name in ("training", "training_rate")}
    assert [record.step for record in lines["training"]] == [0, 2]
    assert all(record.loss > 0 for record in lines["training"])
    assert [record.step for record in lines["training_rate"]] == [3]
    saved = [record.path for record in caplog.records if record.message == "checkpoint_saved"]
    assert saved == [str(tmp_path / "model.ckpt-0"), str(tmp_path / "model.ckpt-4")]


def test_hooks_of_the_caller_see_a_nan_before_it_ends_training(estimator):
    seen = []

    class Sees(SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(1)

    with pytest.raises(lib.NanLossDuringTrainingError):
        estimator.train(line(repeat=None, slope=float("nan")), hooks=[Sees()], steps=5)
    assert seen == [1]


def test_a_nan_may_end_training_quietly(tmp_path):
    """A NanTensorHook of the model_fn that does not fail asks to stop, and training ends well."""

    def model_fn(features, labels, mode, params):
        loss = linear_model_fn(features, labels, mode, params).loss
        return lib.EstimatorSpec(
            mode,
            loss=tf.zeros([]),
            train_op=tf.compat.v1.train.get_global_step().assign_add(1),
            training_hooks=[lib.NanTensorHook(loss, fail_on_nan_loss=False)],
        )

    model = Estimator(model_fn, model_dir=str(tmp_path))
    model.train(line(repeat=None, slope=float("nan")), steps=5)
    assert model.get_variable_value("global_step") == 1


def test_hooks_and_scaffold_of_the_spec_are_honoured(tmp_path):
    everyone, chief, evaluation, initialised = Recorder(), Recorder(), Recorder(), []

    def model_fn(features, labels, mode, params):
        spec = linear_model_fn(features, labels, mode, params)
        scaffold = tf.compat.v1.train.Scaffold(
            init_fn=lambda scaffold, session: initialised.append(session.run("weight/Read/ReadVariableOp:0")),
            saver=tf.compat.v1.train.Saver(max_to_keep=1),
        )
        return spec._replace(
            training_hooks=[everyone],
            training_chief_hooks=[chief],
            evaluation_hooks=[evaluation],
            scaffold=scaffold,
        )

    model = Estimator(model_fn, config=RunConfig(str(tmp_path), save_checkpoints_steps=1))
    model.train(line(repeat=None), steps=2)
    assert [hook.calls.count("after_run") for hook in (everyone, chief, evaluation)] == [2, 2, 0]
    assert len(initialised) == 1, "init_fn runs once, when there is no checkpoint yet"
    assert [path.name for path in tmp_path.glob("*.index")] == ["model.ckpt-2.index"]
    model.evaluate(line(count=4, batch=4))
    assert evaluation.calls[-1] == "end"
    assert len(initialised) == 1


def test_saving_listeners_need_checkpoints(tmp_path):
    config = RunConfig(str(tmp_path), save_checkpoints_steps=None, save_checkpoints_secs=None)
    model = Estimator(linear_model_fn, config=config)
    with pytest.raises(ValueError, match="saving_listeners"):
        model.train(line(), steps=1, saving_listeners=[lib.CheckpointSaverListener()])
    model.train(line(), steps=1)
    assert model.latest_checkpoint() is None


def test_a_listener_can_stop_training(estimator):
    class Enough(lib.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            return global_step_value >= 4

    model = Estimator(linear_model_fn, config=estimator.config.replace(save_checkpoints_steps=2))
    model.train(line(repeat=None), steps=20, saving_listeners=[Enough()])
    assert model.get_variable_value("global_step") == 4


@pytest.mark.parametrize("hooks", [["not a hook"], [None]])
def test_other_things_than_hooks_are_refused(estimator, hooks):
    with pytest.raises(TypeError, match="SessionRunHook"):
        estimator.train(line(), hooks=hooks, steps=1)
