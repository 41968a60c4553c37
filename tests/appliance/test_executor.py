"""Small graphs train on one thread, and only where that works."""

import pytest
import tensorflow as tf

from appliance.estimator import Estimator, RunConfig, SessionRunArgs, SessionRunHook
from appliance.estimator.executor import LARGEST, gains_from_rewriting, suits_single_thread
from tests.appliance.models import line, linear_model_fn


class SeesExecutor(SessionRunHook):
    def after_create_session(self, session, coord):
        self.executor = session._config.experimental.executor_type
        self.threads = session._config.inter_op_parallelism_threads
        self.rewrites = not session._config.graph_options.rewrite_options.disable_meta_optimizer


@pytest.mark.parametrize(
    ("session_config", "executor"),
    [(None, "SINGLE_THREADED_EXECUTOR"), (tf.compat.v1.ConfigProto(allow_soft_placement=True), "")],
)
def test_training_chooses_the_executor_unless_the_user_has_given_options(tmp_path, session_config, executor):
    hook = SeesExecutor()
    config = RunConfig(str(tmp_path), session_config=session_config)
    Estimator(linear_model_fn, config=config).train(line(), steps=1, hooks=[hook])
    assert hook.executor == executor


def test_a_hook_that_may_trace_gets_traces_on_one_thread(tmp_path):
    """The executor is the default one, which can be traced, in the thread of its caller."""

    class Traces(SeesExecutor):
        def before_run(self, run_context):
            return SessionRunArgs(None, options=tf.compat.v1.RunOptions(trace_level=3))

        def after_run(self, run_context, run_values):
            self.traced = run_values.run_metadata.step_stats.dev_stats

    hook = Traces()
    Estimator(linear_model_fn, config=RunConfig(str(tmp_path))).train(line(), steps=1, hooks=[hook])
    assert (hook.executor, hook.threads) == ("", -1)
    assert any(node.node_name.endswith("MatMul") for node in hook.traced[0].node_stats)


def test_a_model_with_conditions_and_assertions_trains_on_one_thread(tmp_path):
    def model_fn(features, labels, mode, params):
        with tf.control_dependencies([tf.debugging.assert_less(labels, 100.0)]):
            labels = tf.cond(tf.reduce_max(labels) > 1.0, lambda: labels, lambda: 2.0 * labels)
        return linear_model_fn(features, labels, mode, params)

    hook = SeesExecutor()
    model = Estimator(model_fn, model_dir=str(tmp_path))
    model.train(line(), hooks=[hook])
    assert hook.executor == "SINGLE_THREADED_EXECUTOR"
    assert model.get_variable_value("global_step") == 2
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.train(line(slope=200.0), steps=2)


def long_chain():
    value = tf.constant(1.0)
    for _ in range(LARGEST + 1):
        value = value + 1.0
    return value


@pytest.mark.parametrize(
    ("make", "suits"),
    [
        (lambda: tf.constant(1.0) + 1.0, True),
        (long_chain, False),
        (lambda: tf.while_loop(lambda i: i < 5, lambda i: [i + 1], [tf.constant(0)])[0], False),
        (lambda: tf.raw_ops.Switch(data=1.0, pred=True)[0], False),
        (lambda: tf.compat.v1.get_variable("ref", [], use_resource=False), False),
        (lambda: tf.function(lambda x: x + 1.0)(tf.constant(1.0)), False),
    ],
    ids=["small", "large", "loop", "old control flow", "old variable", "function"],
)
def test_only_small_graphs_of_supported_operations_suit_one_thread(make, suits):
    with tf.Graph().as_default():
        assert suits_single_thread([make()]) is suits


def test_operations_elsewhere_do_not_suit_one_thread():
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        assert not suits_single_thread([tf.constant(1.0)])


@pytest.mark.parametrize(
    ("make", "gains"),
    [
        (lambda: tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])), False),
        (lambda: tf.cond(tf.constant(1.0) > 0.0, lambda: 1.0, lambda: 2.0), False),
        (lambda: tf.while_loop(lambda i: i < 5, lambda i: [i + 1], [tf.constant(0)])[0], True),
        (lambda: tf.function(lambda x: x + 1.0)(tf.constant(1.0)), True),
        (lambda: tf.nn.conv2d(tf.ones([1, 4, 4, 1]), tf.ones([2, 2, 1, 1]), 1, "SAME"), True),
    ],
    ids=["plain", "condition", "loop", "function", "convolution"],
)
def test_only_graphs_that_may_gain_are_rewritten(make, gains):
    with tf.Graph().as_default() as graph:
        make()
        assert gains_from_rewriting(graph) is gains


@pytest.mark.parametrize("session_config", [None, tf.compat.v1.ConfigProto(allow_soft_placement=True)])
@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_every_verb_leaves_a_plain_graph_as_it_is_unless_the_user_has_given_options(
    tmp_path, verb, session_config
):
    hook = SeesExecutor()
    config = RunConfig(str(tmp_path), session_config=session_config)
    model = Estimator(linear_model_fn, config=config)
    outcome = getattr(model, verb)(line(), hooks=[hook])
    if verb == "predict":
        list(outcome)
    assert hook.rewrites is (session_config is not None)
