"""Keras 3 models as Estimators: the same numbers as `fit`, by the engine of all Estimators."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import RunConfig, export, inputs, model_to_estimator

ROWS = 64


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(7)


def table():
    """Return features `x` [64, 4] and labels [64, 1]."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    return x, (2 * x[:, :1] - x[:, 1:2] + 0.5).astype(np.float32)


def feed(x, y=None, **options):
    return inputs.numpy_input_fn(x, y, **{"batch_size": 16, "shuffle": False, **options})


class Losses(tf.compat.v1.train.SessionRunHook):
    """Collects the loss of each step."""

    def __init__(self):
        self.values = []

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(run_context.original_args.fetches)

    def after_run(self, run_context, run_values):
        self.values.append(float(run_values.results[-1]))


class BatchLosses(keras.callbacks.Callback):
    """Collects the loss of each batch of `fit`, which reports means since the start of the epoch."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


def functional():
    x = keras.Input([4], name="x")
    hidden = keras.layers.Dense(8, activation="relu")(x)
    hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model(x, keras.layers.Dense(1, kernel_regularizer="l2")(hidden))


def sequential():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])


class Subclassed(keras.Model):
    """A model whose layers are not known before it is called."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(8, activation="relu")
        self.second = keras.layers.Dense(1)

    def call(self, inputs):
        return self.second(self.first(inputs["x"]))


def compiled(model, optimizer="sgd", loss="mse", **options):
    model.compile(optimizer, loss, **options)
    return model


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.02)


@pytest.mark.parametrize(
    ("make", "optimizer"), [(functional, sgd), (functional, adam), (sequential, sgd), (Subclassed, adam)]
)
def test_training_gives_the_losses_of_fit(make, optimizer, tmp_path):
    x, y = table()
    model = compiled(make(), optimizer(), metrics=["mae", keras.metrics.RootMeanSquaredError()])
    features = {"x": x}
    if make is Subclassed:
        model({"x": x[:1]})
    estimator = model_to_estimator(model, model_dir=tmp_path)
    losses, expected = Losses(), BatchLosses()
    estimator.train(feed(features, y, num_epochs=3), hooks=[losses])
    given = features if make is Subclassed else x
    model.fit(given, y, batch_size=16, epochs=3, shuffle=False, verbose=0, callbacks=[expected])
    assert len(losses.values) == 12
    np.testing.assert_allclose(losses.values, expected.values, rtol=1e-5)

    results = estimator.evaluate(feed(features, y))
    wanted = model.evaluate(given, y, batch_size=16, verbose=0, return_dict=True)
    assert results.pop("global_step") == 12
    assert results.keys() == wanted.keys() == {"loss", "mae", "root_mean_squared_error"}
    for name, value in wanted.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, err_msg=name)

    predictions = [next(iter(row.values())) for row in estimator.predict(feed(features))]
    np.testing.assert_allclose(predictions, model.predict(given, verbose=0), rtol=1e-4, atol=1e-5)


def test_dropout_drops_in_training_only_and_differently_each_step(tmp_path):
    layers = [keras.Input([100]), keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="ones")]
    model = compiled(keras.Sequential(layers), keras.optimizers.SGD(0.0))
    estimator = model_to_estimator(model, model_dir=tmp_path)
    losses = Losses()
    x, y = np.ones([1, 100], np.float32), np.full([1, 1], 100, np.float32)
    estimator.train(feed(x, y, num_epochs=8, batch_size=1), hooks=[losses])
    assert len(set(losses.values)) > 4
    assert estimator.evaluate(feed(x, y))["loss"] == 0
    # The state of the random numbers goes on from the checkpoint.
    more = Losses()
    estimator.train(feed(x, y, num_epochs=2, batch_size=1), hooks=[more])
    assert more.values != losses.values[:2]


def two_headed():
    wide = keras.Input([4], name="wide")
    word = keras.Input([], name="word", dtype="string")
    lookup = keras.layers.StringLookup(vocabulary=["red", "green"])
    scale = keras.layers.Normalization(mean=[1.0, 0.0, 0.0, 0.0], variance=[4.0, 1.0, 1.0, 1.0])
    embedded = keras.layers.Embedding(3, 2)(lookup(word))
    joined = keras.layers.Concatenate()([scale(wide), embedded])
    price = keras.layers.Dense(1, name="price")(joined)
    sold = keras.layers.Dense(1, activation="sigmoid", name="sold")(joined)
    model = keras.Model([wide, word], [price, sold])
    # Not Adam: Keras 3 squares the gradients of a word's occurrences one by one, here their sum is squared.
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        {"price": "mse", "sold": lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1)},
        loss_weights={"price": 1.0, "sold": 2.0},
        metrics={"price": ["mae"], "sold": [keras.metrics.AUC(name="auc"), "accuracy"]},
    )
    return model


def test_several_inputs_and_outputs_with_tables_and_custom_losses(tmp_path):
    x, y = table()
    features = {"wide": x, "word": np.array([b"red", b"green", b"blue", b"red"] * 16)}
    labels = {"price": y, "sold": (y > 0).astype(np.float32)}
    model = two_headed()
    estimator = model_to_estimator(
        model,
        model_dir=tmp_path,
        metric_names_map={"sold_auc": "area"},
        export_outputs={"price": export.RegressionOutput},
    )
    losses, expected = Losses(), BatchLosses()
    estimator.train(feed(features, labels, num_epochs=2), hooks=[losses])
    tensors = {"wide": x, "word": tf.constant(features["word"])}
    data = tf.data.Dataset.from_tensor_slices((tensors, labels)).batch(16)
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[expected])
    np.testing.assert_allclose(losses.values, expected.values, rtol=1e-5)
    results = estimator.evaluate(feed(features, labels))
    wanted = model.evaluate(data, verbose=0, return_dict=True)
    wanted["area"] = wanted.pop("sold_auc")
    assert results.keys() - {"global_step"} == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, err_msg=name)
    # The layers are the model's own again.
    model.predict(data, verbose=0)

    def receiver():
        wide = tf.compat.v1.placeholder(tf.float32, [None, 4])
        word = tf.compat.v1.placeholder(tf.string, [None])
        return export.ServingInputReceiver({"wide": wide, "word": word}, {"wide": wide, "word": word})

    path = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    served = tf.saved_model.load(path).signatures["serving_default"](
        wide=tf.constant(x), word=tf.constant(features["word"])
    )
    assert served.keys() == {"price", "sold"}
    np.testing.assert_allclose(served["price"], model.predict(data, verbose=0)[0], rtol=1e-4, atol=1e-5)


def test_sample_weights_scale_the_loss(tmp_path):
    x, y = table()
    weights = np.linspace(0, 2, ROWS, dtype=np.float32)
    model = compiled(functional(), weighted_metrics=["mae"])
    estimator = model_to_estimator(model, model_dir=tmp_path)
    features = {"features": {"x": x}, "sample_weights": weights}
    results = estimator.evaluate(lambda: tf.data.Dataset.from_tensor_slices((features, y)).batch(16))
    wanted = model.evaluate(x, y, sample_weight=weights, batch_size=16, verbose=0, return_dict=True)
    np.testing.assert_allclose(results["mae"], wanted["mae"], rtol=1e-5)
    batches = (weights[:, None] * (y - model.predict(x, verbose=0)) ** 2).reshape(4, 16).mean(axis=1)
    penalty = sum(float(loss) for loss in model.losses)
    np.testing.assert_allclose(results["loss"], batches.mean() + penalty, rtol=1e-5)


class Penalty(keras.layers.Layer):
    """Adds the mean square of what it passes on to the loss."""

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Nadam])
def test_losses_that_layers_add_count_and_constraints_hold(optimizer, tmp_path):
    x, y = table()
    layers = [keras.Input([4]), keras.layers.Dense(8, "relu", activity_regularizer="l1"), Penalty()]
    layers.append(keras.layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.5)))
    model = compiled(keras.Sequential(layers), optimizer(0.05))
    estimator = model_to_estimator(model, model_dir=tmp_path)
    losses, expected = Losses(), BatchLosses()
    estimator.train(feed(x, y), hooks=[losses])
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[expected])
    np.testing.assert_allclose(losses.values, expected.values, rtol=1e-5)
    norm = np.linalg.norm(estimator.get_variable_value("dense_1/kernel"))
    np.testing.assert_allclose(norm, 0.5, rtol=1e-5)
    np.testing.assert_allclose(
        estimator.evaluate(feed(x, y))["loss"],
        np.mean([model.test_on_batch(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32, 48)]),
        rtol=1e-5,
    )


def test_calls_leave_no_graph_behind(tmp_path):
    x, y = table()
    estimator = model_to_estimator(compiled(functional()), model_dir=tmp_path)
    graphs = []

    class Keep(tf.compat.v1.train.SessionRunHook):
        def begin(self):
            graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))

    for _ in range(2):
        estimator.train(feed({"x": x}, y), hooks=[Keep()])
        estimator.evaluate(feed({"x": x}, y), hooks=[Keep()])
    list(estimator.predict(feed({"x": x}), hooks=[Keep()]))
    gc.collect()
    assert len(graphs) == 5
    assert not any(graph() for graph in graphs)


def test_optimizers_that_scale_the_loss_are_refused(tmp_path):
    x, y = table()
    model = compiled(functional(), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ValueError, match=r"scales the loss.*mixed_bfloat16"):
        model_to_estimator(model, model_dir=tmp_path).train(feed({"x": x}, y))


def test_names_do_not_depend_on_what_was_built_before(tmp_path):
    x, y = table()
    one = model_to_estimator(compiled(functional()), model_dir=tmp_path)
    one.train(feed({"x": x}, y, num_epochs=1))
    for _ in range(3):
        functional()
    other = model_to_estimator(compiled(functional()), model_dir=tmp_path)
    other.train(feed({"x": x}, y, num_epochs=1))
    names = set(other.get_variable_names())
    assert {"dense/kernel", "dense_1/kernel", "batch_normalization/moving_mean"} <= names
    assert other.get_variable_value("global_step") == 8
    assert next(other.predict(feed({"x": x}))).keys() == {"dense_1"}


def test_a_model_is_built_by_the_first_batch(tmp_path):
    x, y = table()
    estimator = model_to_estimator(compiled(Subclassed()), model_dir=tmp_path)
    estimator.train(feed({"x": x}, y, num_epochs=2))
    assert estimator.evaluate(feed({"x": x}, y))["global_step"] == 8
    assert estimator.get_variable_value("dense/kernel").shape == (4, 8)


def test_recurrent_layers_and_bfloat16_train(tmp_path):
    x = np.random.default_rng(1).normal(size=(32, 5, 3)).astype(np.float32)
    y = x.sum(axis=(1, 2), keepdims=False)[:, None] > 0
    layers = [keras.Input([5, 3]), keras.layers.LSTM(4), keras.layers.Dense(1, dtype="mixed_bfloat16")]
    model = compiled(keras.Sequential(layers), keras.optimizers.AdamW(0.05), "mse")
    estimator = model_to_estimator(model, model_dir=tmp_path)
    first = estimator.evaluate(feed(x, y.astype(np.float32)))["loss"]
    estimator.train(feed(x, y.astype(np.float32), num_epochs=20))
    assert estimator.evaluate(feed(x, y.astype(np.float32)))["loss"] < 0.7 * first


def test_a_saved_model_is_loaded_from_its_file(tmp_path):
    x, y = table()
    model = compiled(functional())
    model.save(tmp_path / "model.keras")
    estimator = model_to_estimator(
        keras_model_path=tmp_path / "model.keras", config=RunConfig(str(tmp_path / "model"))
    )
    np.testing.assert_allclose(
        estimator.evaluate(feed({"x": x}, y))["loss"],
        model.evaluate(x, y, batch_size=16, verbose=0),
        rtol=1e-5,
    )


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict, ValueError, "needs to be provided. Given: neither"),
        (lambda: {"keras_model": functional(), "keras_model_path": "x"}, ValueError, "Given: both"),
        (lambda: {"keras_model": functional()}, ValueError, "not been compiled"),
        (lambda: {"keras_model": "model"}, TypeError, "must be a Keras 3 model"),
        (lambda: {"keras_model": compiled(OwnStep())}, ValueError, "OwnStep overrides train_step"),
        (
            lambda: {"keras_model": compiled(functional()), "checkpoint_format": "h5"},
            ValueError,
            "checkpoint_format must be",
        ),
    ],
)
def test_bad_models_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        model_to_estimator(**arguments())


def test_what_the_input_fn_lacks_is_named(tmp_path):
    x, y = table()
    estimator = model_to_estimator(compiled(functional()), model_dir=tmp_path)
    with pytest.raises(ValueError, match=r"inputs \['x'\].*gave the features \['z'\]. Missing: \['x'\]"):
        estimator.train(feed({"z": x}, y))
    with pytest.raises(ValueError, match="gave no labels"):
        estimator.train(feed({"x": x}))
