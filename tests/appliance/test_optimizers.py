"""Update rules against NumPy, and everything that may be given as an optimizer."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import optimizers
from appliance.estimator.optimizers import build_train_op, get_optimizer, gradients

ROWS = np.array([1, 3, 1])
START = np.linspace(-1.0, 1.0, 10, dtype=np.float32).reshape(5, 2)


class Training:
    """Steps on `sum((w[ROWS] + b)^2)`: a sparse gradient for w, with a row twice, and a dense one for b."""

    def __init__(self, optimizer, steps=3):
        with tf.Graph().as_default() as graph:
            self.graph = weakref.ref(graph)
            tf.compat.v1.train.get_or_create_global_step()
            with tf.compat.v1.variable_scope("m"):
                w = tf.compat.v1.get_variable("w", initializer=START, use_resource=True)
                b = tf.compat.v1.get_variable("b", initializer=np.float32([0.5, -0.5]), use_resource=True)
            loss = tf.reduce_sum(tf.square(tf.gather(w, ROWS) + b))
            chosen = get_optimizer(optimizer)
            train_op = build_train_op(chosen, gradients(loss, [w, b]), loss)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                for _ in range(steps):
                    session.run(train_op)
                values = {v.op.name: session.run(v) for v in tf.compat.v1.global_variables()}
        self.step = values["global_step"]
        self.w, self.b = values["m/w"], values["m/b"]
        self.variables = values


def expected(rule, steps=3):
    """Return w and b after `rule(variable, gradient, slots, step, touched rows)`, applied in float64."""
    w, b = START.astype(np.float64), np.array([0.5, -0.5])
    slots = {"w": {}, "b": {}}
    for step in range(steps):
        per_row = 2 * (w[ROWS] + b)
        gradient = np.zeros_like(w)
        np.add.at(gradient, ROWS, per_row)
        touched = np.zeros((5, 1), bool)
        touched[ROWS] = True
        w, b = (
            rule(w, gradient, slots["w"], step, touched),
            rule(b, per_row.sum(axis=0), slots["b"], step, True),
        )
    return w, b


def adagrad(v, g, slots, step, touched):
    slots["a"] = slots.get("a", 0.1) + g**2
    return v - 0.1 * g / (np.sqrt(slots["a"]) + 1e-7)


def adam(v, g, slots, step, touched):
    slots["m"] = 0.9 * slots.get("m", 0) + 0.1 * g
    slots["v"] = 0.999 * slots.get("v", 0) + 0.001 * g**2
    rate = 0.1 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    return v - rate * slots["m"] / (np.sqrt(slots["v"]) + 1e-7)


def rmsprop(v, g, slots, step, touched):
    slots["rms"] = 0.9 * slots.get("rms", 0) + 0.1 * g**2
    return v - np.where(touched, 0.1 * g / (np.sqrt(slots["rms"]) + 1e-7), 0)


def sgd(v, g, slots, step, touched):
    return v - 0.1 * g


def momentum(v, g, slots, step, touched):
    # Keras 2 updates the momentum of the rows that have a gradient only.
    slots["m"] = np.where(touched, 0.9 * slots.get("m", 0) - 0.1 * g, slots.get("m", 0))
    return v + np.where(touched, slots["m"], 0)


def ftrl(v, g, slots, step, touched):
    old = slots.get("n", np.full_like(v, 0.1))
    new = old + g**2
    linear = slots.get("z", 0) + g - (np.sqrt(new) - np.sqrt(old)) / 0.1 * v
    solved = np.where(
        np.abs(linear) > 0.05, (np.sign(linear) * 0.05 - linear) / (np.sqrt(new) / 0.1 + 2 * 0.5), 0
    )
    slots["n"], slots["z"] = np.where(touched, new, old), np.where(touched, linear, slots.get("z", 0))
    return np.where(touched, solved, v)


RULES = {
    "adagrad": (lambda: optimizers.Adagrad(0.1), adagrad),
    "adam": (lambda: optimizers.Adam(0.1), adam),
    "rmsprop": (lambda: optimizers.RMSprop(0.1), rmsprop),
    "sgd": (lambda: optimizers.SGD(0.1), sgd),
    "momentum": (lambda: optimizers.SGD(0.1, momentum=0.9), momentum),
    "ftrl": (
        lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.05, l2_regularization_strength=0.5),
        ftrl,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_follows_its_formula_for_dense_and_sparse_gradients(name):
    make, rule = RULES[name]
    trained = Training(make())
    w, b = expected(rule)
    np.testing.assert_allclose(trained.w, w, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(trained.b, b, rtol=2e-5, atol=1e-6)
    assert trained.step == 3


KERAS = {
    "Adagrad": {"initial_accumulator_value": 0.2, "epsilon": 1e-3},
    "Adam": {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-4, "amsgrad": True, "clipnorm": 0.5},
    "Ftrl": {"l1_regularization_strength": 0.01, "beta": 0.1, "learning_rate_power": -0.4},
    "RMSprop": {"rho": 0.7, "momentum": 0.2, "centered": True, "clipvalue": 0.3},
    "SGD": {"momentum": 0.3, "nesterov": True, "global_clipnorm": 0.4},
}


@pytest.mark.parametrize("name", KERAS)
def test_keras_optimizer_passes_on_all_its_settings(name):
    """The object, a callable that makes it in the graph, and the rule with the same settings do the same."""
    settings = {"learning_rate": 0.05, **KERAS[name]}
    make = getattr(tf.keras.optimizers, name)
    given = make(**settings)
    same = [
        Training(given),
        Training(given),
        Training(lambda: make(**settings)),
    ]
    reference = Training(getattr(optimizers, name)(**settings))
    for trained in same:
        np.testing.assert_array_equal(trained.w, reference.w)
        assert sorted(trained.variables) == sorted(reference.variables)


def test_variables_are_named_after_the_optimizer_and_the_variable():
    assert sorted(Training("Ftrl").variables) == [
        "global_step",
        "m/b",
        "m/w",
        "training/Ftrl/beta",
        "training/Ftrl/decay",
        "training/Ftrl/l1_regularization_strength",
        "training/Ftrl/l2_regularization_strength",
        "training/Ftrl/learning_rate",
        "training/Ftrl/learning_rate_power",
        "training/Ftrl/m/b/accumulator",
        "training/Ftrl/m/b/linear",
        "training/Ftrl/m/w/accumulator",
        "training/Ftrl/m/w/linear",
    ]
    assert "training/mine/learning_rate" in Training(tf.keras.optimizers.Adam(name="mine")).variables


def test_learning_rate_may_follow_a_schedule_or_a_callable():
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.1, 0.0])
    frozen = Training(tf.keras.optimizers.SGD(schedule), steps=3)
    np.testing.assert_allclose(frozen.w, expected(sgd, steps=1)[0], rtol=1e-5, atol=1e-7)
    assert "training/SGD/learning_rate" not in frozen.variables

    def from_step():
        return 0.1 / (1.0 + tf.cast(tf.compat.v1.train.get_global_step(), tf.float32) * 1e9)

    called = Training(lambda: tf.keras.optimizers.SGD(from_step))
    np.testing.assert_allclose(called.w, frozen.w, rtol=1e-5, atol=1e-7)


def test_v1_optimizer_trains_and_counts_the_global_step():
    trained = Training(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    np.testing.assert_allclose(trained.w, expected(sgd)[0], rtol=1e-5)
    assert trained.step == 3


@pytest.mark.parametrize("wrap", [lambda make: make(), lambda make: make], ids=["object", "callable"])
def test_keras_optimizer_without_a_rule_here_runs_as_it_is(wrap):
    """AdamW: the first step is the learning rate against the gradient's sign, after the weight's decay."""
    given = wrap(lambda: tf.keras.optimizers.AdamW(0.1, weight_decay=0.5))
    trained = Training(given, steps=1)
    touched = START[[1, 3]] - START[[1, 3]] * 0.05 - 0.1 * np.sign(START[[1, 3]] + [0.5, -0.5])
    np.testing.assert_allclose(trained.w[[1, 3]], touched, rtol=1e-4)
    np.testing.assert_allclose(trained.w[[0, 2, 4]], START[[0, 2, 4]] * 0.95, rtol=1e-5)
    assert trained.step == 1
    assert {"training/AdamW/iteration", "training/AdamW/learning_rate"} < set(trained.variables)
    assert Training(given, steps=2).step == 2


class Keras2Style:
    """The part of Keras 2's optimizer that tf.estimator used."""

    iterations = None

    def get_updates(self, loss, params):
        pairs = zip(tf.gradients(loss, params), params, strict=True)
        moves = [tf.compat.v1.assign_sub(v, 0.1 * tf.convert_to_tensor(g)) for g, v in pairs]
        with tf.control_dependencies(moves):
            return [self.iterations.assign_add(1, read_value=False)]


@pytest.mark.parametrize("optimizer", [Keras2Style(), Keras2Style], ids=["object", "callable"])
def test_optimizer_in_the_style_of_keras_2_trains_and_counts_the_global_step(optimizer):
    trained = Training(optimizer)
    np.testing.assert_allclose(trained.w, expected(sgd)[0], rtol=1e-5)
    assert trained.step == 3


def test_optimizer_object_keeps_no_graph_alive():
    given = [tf.keras.optimizers.Adam(), tf.keras.optimizers.AdamW(), optimizers.Ftrl()]
    graphs = [Training(optimizer, steps=1).graph for optimizer in given]
    gc.collect()
    assert [graph() for graph in graphs] == [None, None, None]


def mirrored(optimizer, steps=3):
    """Train as `Training` does, on two devices that share the rows; return both weights, and the step."""
    with tf.Graph().as_default():
        strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        with strategy.scope():
            step = tf.compat.v1.train.get_or_create_global_step()
            shares = [ROWS[:2], ROWS[2:]]
            rows = strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(shares[context.replica_id_in_sync_group])
            )

            def replica(rows):
                with tf.compat.v1.variable_scope("m"):
                    w = tf.compat.v1.get_variable("w", initializer=START, use_resource=True)
                    b = tf.compat.v1.get_variable("b", initializer=np.float32([0.5, -0.5]), use_resource=True)
                loss = tf.reduce_sum(tf.square(tf.gather(w, rows) + b))
                train_op = build_train_op(get_optimizer(optimizer), gradients(loss, [w, b]), loss)
                with tf.control_dependencies([train_op]):
                    return tf.identity(loss), w

            losses, w = strategy.extended.call_for_each_replica(replica, args=(rows,))
        config = tf.compat.v1.ConfigProto(device_count={"CPU": 2})
        with tf.compat.v1.Session(config=config) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(steps):
                session.run(strategy.experimental_local_results(losses))
            return session.run([*w.values, step.values[0]])


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"])
def test_replicas_train_together_as_one(name):
    """The gradients of two mirrored replicas are summed, and both end where one device with all rows does."""
    first, second, step = mirrored(name)
    together = Training(name)
    np.testing.assert_allclose(first, together.w, rtol=1e-6)
    np.testing.assert_array_equal(second, first)
    assert step == 3


def test_keras_optimizer_without_a_rule_refuses_replicas():
    with pytest.raises(ValueError, match="Keras optimizer AdamW cannot train 2 replicas here"):
        mirrored(tf.keras.optimizers.AdamW())


def test_unknown_optimizer_is_refused_with_what_is_known():
    with pytest.raises(ValueError, match=r"'Adamm'. Supported names are: Adagrad, Adam, Ftrl, RMSProp, SGD"):
        get_optimizer("Adamm")
    with pytest.raises(ValueError, match=r"of type int is not one. Give a name .*tf.compat.v1.train"):
        get_optimizer(3)
    with pytest.raises(ValueError, match="of type int is not one"):
        get_optimizer(lambda: 3)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="Ftrl: l1_regularization_strength must be zero or positive; got -1"):
        optimizers.Ftrl(l1_regularization_strength=-1.0)
    with pytest.raises(ValueError, match="At most one of clipnorm"):
        optimizers.SGD(clipnorm=1.0, clipvalue=1.0)
    with pytest.raises(ValueError, match="SGD: momentum must be between 0 and 1; got 2"):
        optimizers.SGD(momentum=2.0)


def test_variable_that_the_loss_does_not_depend_on_is_named():
    with tf.Graph().as_default():
        used = tf.Variable(1.0, name="used")
        unused = tf.Variable(1.0, name="unused")
        with pytest.raises(ValueError, match=r"does not depend on the variables \['unused:0'\]"):
            gradients(used * 2.0, [used, unused])
