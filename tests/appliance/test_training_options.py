"""What is asked for by arguments: schedules of the learning rate, clipping, class weights, precision."""

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import (
    BinaryClassHead,
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    MultiClassHead,
    RunConfig,
)
from appliance.estimator.optimizers import get_optimizer
from tests.appliance.test_keras import Losses, feed

X = [tf.feature_column.numeric_column("x")]


def updates_of(optimizer, gradient, steps):
    """Return how far one variable, from 0 on, has moved after each step against a constant gradient."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([0.0, 0.0])
        made = get_optimizer(optimizer)
        train = made.apply_gradients([(tf.constant(gradient), variable)])
        session.run(tf.compat.v1.global_variables_initializer())
        moved = []
        for _ in range(steps):
            session.run(train)
            moved.append(session.run(variable))
    return np.diff([np.zeros(2), *moved], axis=0)


def test_a_schedule_is_asked_for_by_name():
    schedule = {"name": "PiecewiseConstantDecay", "boundaries": [1], "values": [0.5, 0.1]}
    moved = updates_of({"name": "SGD", "learning_rate": schedule}, [1.0, 2.0], 3)
    np.testing.assert_allclose(moved, [[-0.5, -1.0], [-0.5, -1.0], [-0.1, -0.2]], rtol=1e-6)


def test_gradients_are_clipped_by_an_argument():
    moved = updates_of({"name": "SGD", "learning_rate": 1.0, "global_clipnorm": 1.0}, [3.0, 4.0], 1)
    np.testing.assert_allclose(moved, [[-0.6, -0.8]], rtol=1e-6)


def test_settings_without_a_rate_have_the_estimators(tmp_path):
    x = np.ones([4, 1], np.float32)
    for folder, optimizer in (("name", "Ftrl"), ("dict", {"name": "Ftrl"})):
        model = LinearRegressor(X, str(tmp_path / folder), optimizer=optimizer)
        model.train(feed({"x": x}, x))
    rates = [
        LinearRegressor(X, str(tmp_path / f)).get_variable_value("training/Ftrl/learning_rate")
        for f in ("name", "dict")
    ]
    assert rates[0] == rates[1] == np.float32(0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "Adm"}, "Unsupported optimizer name: 'Adm'.*Adagrad, Adam"),
        ({"learning_rate": 1.0}, "Unsupported optimizer name: None"),
        ({"name": "SGD", "learning_rate": {"name": "Cosine"}}, "schedule: 'Cosine'.*CosineDecay, "),
        (
            {"name": "SGD", "learning_rate": {"name": "CosineDecay"}},
            "schedule CosineDecay cannot be made with",
        ),
        ({"name": "SGD", "rate": 1.0}, "optimizer SGD cannot be made with .*'rate'"),
    ],
)
def test_bad_settings_are_refused_when_the_estimator_is_made(settings, message):
    with pytest.raises(ValueError, match=message):
        DNNClassifier([4], X, optimizer=settings)


def test_class_weights_scale_the_training_loss_of_two_classes_only():
    head = BinaryClassHead(class_weight={1: 3.0}, weight_column="w")
    labels, logits = tf.constant([[1.0], [0.0], [0.5]]), tf.zeros([3, 1])
    features = {"w": tf.constant([[1.0], [2.0], [1.0]])}
    expected = np.log(2) * np.array([3.0, 2.0, 2.0])
    training = head.loss(labels, logits, features, mode="train")
    np.testing.assert_allclose(training, expected.mean(), rtol=1e-6)
    np.testing.assert_allclose(head.loss(labels, logits, features, mode="eval"), np.log(2) * 4 / 3, rtol=1e-6)


def test_class_weights_go_by_the_label_vocabulary():
    head = MultiClassHead(3, label_vocabulary=["a", "b", "c"], class_weight={"a": 0.0, "c": 5.0})
    loss = head.loss(tf.constant([["a"], ["b"], ["c"]]), tf.zeros([3, 3]), mode="train")
    np.testing.assert_allclose(loss, np.log(3) * 6 / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weight": {2: 1.0}}, r"class_weight has weights for \[2\].*labels: \[0, 1\]"),
        ({"class_weight": {0: -1.0}}, "must not be negative"),
        ({"class_weight": {0: 1.0}, "label_vocabulary": ["n", "y"]}, r"for \[0\].*\['n', 'y'\]"),
    ],
)
def test_bad_class_weights_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinearClassifier(X, **arguments)


def test_class_weights_move_what_a_model_predicts(tmp_path):
    x, y = np.ones([40, 1], np.float32), np.array([1] * 10 + [0] * 30)
    columns = {"linear_feature_columns": X, "linear_optimizer": {"name": "Ftrl", "learning_rate": 1.0}}
    chances = []
    for weight in (1.0, 3.0):
        model = DNNLinearCombinedClassifier(str(tmp_path / str(weight)), class_weight={1: weight}, **columns)
        model.train(feed({"x": x}, y, num_epochs=None, batch_size=40), steps=150)
        chances.append(next(model.predict(feed({"x": x})))["logistic"][0])
    np.testing.assert_allclose(chances, [0.25, 0.5], atol=0.02)


def test_mixed_precision_trains_float32_variables_in_bfloat16(tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, [64, 1]).astype(np.float32)
    losses = {}
    for mixed in (False, True):
        types = Types()
        model = DNNRegressor(
            [16, 8],
            X,
            str(tmp_path / str(mixed)),
            optimizer={"name": "Adam", "learning_rate": 0.02},
            mixed_precision=mixed,
            config=RunConfig(tf_random_seed=1),
        )
        model.train(feed({"x": x}, x**2, num_epochs=60), hooks=[types])
        losses[mixed] = model.evaluate(feed({"x": x}, x**2))["average_loss"]
        assert ("bfloat16" in types.products) == mixed
        assert model.get_variable_value("dnn/hiddenlayer_0/kernel").dtype == np.float32
        assert next(model.predict(feed({"x": x})))["predictions"].dtype == np.float32
    assert losses[True] < 0.02
    assert losses[True] != losses[False]


def test_batches_are_normalised_in_float32_when_precision_is_mixed(tmp_path):
    model = DNNClassifier([4], X, str(tmp_path), batch_norm=True, dropout=0.1, mixed_precision=True)
    model.train(feed({"x": np.ones([8, 1], np.float32)}, np.zeros(8, np.int64)))
    assert model.get_variable_value("dnn/hiddenlayer_0/batchnorm_0/moving_mean").dtype == np.float32


def test_the_compiled_train_step_gives_the_same_losses(tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, [64, 1]).astype(np.float32)
    values, kinds = [], []
    for jit in (False, True):
        losses, nodes = Losses(), Nodes()
        config = RunConfig(str(tmp_path / str(jit)), tf_random_seed=1, jit_compile=jit)
        model = DNNRegressor([16], X, optimizer="Adam", config=config)
        model.train(feed({"x": x}, x**2, num_epochs=3), hooks=[losses, nodes])
        model.evaluate(feed({"x": x}, x**2))
        values.append(losses.values)
        kinds.append(nodes.kinds)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5)
    assert "_XlaRun" in kinds[1] - kinds[0]


class Nodes(tf.compat.v1.train.SessionRunHook):
    """Collects the kinds of operations that a step really runs."""

    def before_run(self, run_context):
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        return tf.compat.v1.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context, run_values):
        self.kinds = {node.op for graph in run_values.run_metadata.partition_graphs for node in graph.node}


class Types(tf.compat.v1.train.SessionRunHook):
    """Collects the dtypes of the matrix products of a graph."""

    def begin(self):
        operations = tf.compat.v1.get_default_graph().get_operations()
        self.products = {op.outputs[0].dtype.name for op in operations if op.type == "MatMul"}
