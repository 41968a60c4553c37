"""The rules of model_fn and EstimatorSpec."""

import functools

import pytest
import tensorflow as tf

from appliance.estimator.arguments import argument_names
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys, call_model_fn, check_model_fn


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


class Model:
    def method(self, features, labels):
        return features, labels

    def __call__(self, features, mode):
        return features, mode


def test_argument_names_of_every_kind_of_callable():
    assert argument_names(lambda features, labels: None) == ("features", "labels")
    assert argument_names(Model().method) == ("features", "labels")
    assert argument_names(Model()) == ("features", "mode")
    assert argument_names(functools.partial(Model().method, labels=1)) == ("features",)
    assert argument_names(functools.partial(lambda extra, features: None, 1)) == ("features",)


@pytest.mark.parametrize(
    ("model_fn", "params", "message"),
    [
        (None, None, "must be provided"),
        (lambda labels: None, None, "must include features"),
        (lambda features: None, {"a": 1}, "does not include params"),
        (lambda features, other: None, None, r"not expected args: \['other'\]"),
    ],
)
def test_model_fn_with_wrong_arguments_is_refused(model_fn, params, message):
    with pytest.raises(ValueError, match=message):
        check_model_fn(model_fn, params)


def test_call_model_fn_gives_only_declared_arguments(graph):
    seen = {}

    def model_fn(features, mode, config):
        seen.update(features=features, mode=mode, config=config)
        return EstimatorSpec(mode, predictions=tf.constant([1.0]))

    call_model_fn(model_fn, 7, None, ModeKeys.PREDICT, {"p": 1}, "the config")
    assert seen == {"features": 7, "mode": "infer", "config": "the config"}


def test_labels_for_a_model_fn_without_labels_are_refused(graph):
    with pytest.raises(ValueError, match="does not take labels"):
        call_model_fn(lambda features: None, 1, 2, ModeKeys.TRAIN, None, None)


def test_result_other_than_a_spec_is_refused(graph):
    with pytest.raises(ValueError, match="should return an EstimatorSpec"):
        call_model_fn(lambda features: 3, 1, None, ModeKeys.TRAIN, None, None)


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_metric_names_of_the_framework_are_refused(graph, name):
    def model_fn(features):
        return EstimatorSpec(
            ModeKeys.EVAL, loss=tf.constant(1.0), eval_metric_ops={name: tf.compat.v1.metrics.mean([1.0])}
        )

    with pytest.raises(ValueError, match=f'"{name}" is not allowed'):
        call_model_fn(model_fn, 1, None, ModeKeys.EVAL, None, None)


@pytest.mark.parametrize(
    ("mode", "missing"),
    [(ModeKeys.TRAIN, "train_op"), (ModeKeys.EVAL, "loss"), (ModeKeys.PREDICT, "predictions")],
)
def test_each_mode_has_its_required_field(graph, mode, missing):
    with pytest.raises(ValueError, match=f"Missing {missing}"):
        EstimatorSpec(mode)


def test_loss_of_one_element_becomes_a_scalar(graph):
    assert EstimatorSpec(ModeKeys.EVAL, loss=tf.constant([1.0])).loss.shape.rank == 0
    with pytest.raises(ValueError, match="Loss must be scalar"):
        EstimatorSpec(ModeKeys.EVAL, loss=tf.constant([1.0, 2.0]))
    with pytest.raises(TypeError, match="loss must be Tensor"):
        EstimatorSpec(ModeKeys.EVAL, loss=1.0)


def test_tensors_of_another_graph_are_refused(graph):
    with tf.Graph().as_default():
        foreign = tf.constant(1.0, name="foreign")
    with pytest.raises(ValueError, match="loss with foreign:0 must be from the default graph"):
        EstimatorSpec(ModeKeys.EVAL, loss=foreign)
    with pytest.raises(ValueError, match=r"predictions\[p\] with foreign:0"):
        EstimatorSpec(ModeKeys.PREDICT, predictions={"p": foreign})


def test_hooks_become_tuples_and_are_checked(graph):
    hook = tf.compat.v1.train.SessionRunHook()
    spec = EstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0), evaluation_hooks=[hook])
    assert spec.evaluation_hooks == (hook,)
    assert spec.training_hooks == ()
    assert isinstance(spec.scaffold, tf.compat.v1.train.Scaffold)
    with pytest.raises(TypeError, match="SessionRunHook"):
        EstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0), training_hooks=["no hook"])


def test_replace_validates_and_keeps_the_mode(graph):
    spec = EstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0))
    assert spec._replace(predictions=tf.constant(2.0)).mode == ModeKeys.EVAL
    with pytest.raises(ValueError, match="cannot be changed"):
        spec._replace(mode=ModeKeys.TRAIN)


def test_export_outputs_get_a_default_signature_without_changing_the_given_dict(graph):
    from appliance.estimator.export import PredictOutput

    given = {"scores": PredictOutput(tf.constant([1.0]))}
    spec = EstimatorSpec(ModeKeys.PREDICT, predictions=tf.constant([1.0]), export_outputs=given)
    assert set(spec.export_outputs) == {"scores", "serving_default"}
    assert set(given) == {"scores"}
    with pytest.raises(TypeError, match="must be"):
        EstimatorSpec(ModeKeys.PREDICT, predictions=tf.constant([1.0]), export_outputs=[1])


def test_keras_metrics_become_pairs_with_variables_outside_the_checkpoint(graph):
    import keras

    metric = keras.metrics.MeanSquaredError()
    values = tf.compat.v1.placeholder(tf.float32, [None])
    with pytest.raises(ValueError, match="Please call update_state"):
        EstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0), eval_metric_ops={"mse": metric})
    metric.update_state(tf.zeros([2]), values)
    spec = EstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0), eval_metric_ops={"mse": metric})
    value, update = spec.eval_metric_ops["mse"]
    assert not tf.compat.v1.global_variables()
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.local_variables_initializer())
        session.run(update, {values: [1.0, 1.0]})
        session.run(update, {values: [3.0, 3.0]})
        assert session.run(value) == pytest.approx(5.0)
