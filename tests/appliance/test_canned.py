"""Canned estimators through the Estimator: what the golden numbers do not show."""

import glob

import numpy as np
import pytest
import tensorflow as tf

from appliance import estimator

fc = tf.feature_column
X = np.random.RandomState(0).normal(size=(64, 2)).astype(np.float32)
FEATURES = {"x": X, "word": np.where(X[:, 0] > 0, "up", "down")}
LABELS = (X.sum(axis=1) > 0).astype(np.int64)


def data():
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).repeat().batch(32)


def columns():
    return [fc.numeric_column("x", shape=(2,))]


def word():
    return fc.categorical_column_with_vocabulary_list("word", ["up", "down"])


def variable(trained, name):
    return trained.get_variable_value(name)


def test_named_optimizers_have_each_estimators_own_learning_rate():
    """A network learns at Keras' rate, a linear model at 0.2, and in the combined model slower yet."""
    wide = [fc.numeric_column("x", shape=(2,)), word()]
    made = {
        "training/Adagrad/learning_rate": (estimator.DNNClassifier([2], columns()), 0.001),
        "training/SGD/learning_rate": (estimator.DNNClassifier([2], columns(), optimizer="SGD"), 0.01),
        "training/Ftrl/learning_rate": (estimator.LinearClassifier(wide), 0.2),
        "training/Adam/learning_rate": (
            estimator.DNNLinearCombinedClassifier(linear_feature_columns=wide, linear_optimizer="Adam"),
            0.005,
        ),
    }
    for name, (canned, rate) in made.items():
        canned.train(data, steps=1)
        assert variable(canned, name) == pytest.approx(rate)


def test_training_goes_on_where_the_checkpoint_ends(tmp_path):
    """Ten steps at once, and four and six, end with the same weights, slots and step."""

    def train(path, *steps):
        for count in steps:
            made = estimator.LinearClassifier(
                [word(), *columns()], model_dir=str(path), optimizer=tf.keras.optimizers.Adam(0.1)
            )
            made.train(data, steps=count)
        return made

    once, twice = train(tmp_path / "a", 10), train(tmp_path / "b", 4, 6)
    assert variable(twice, "global_step") == 10
    for name in once.get_variable_names():
        np.testing.assert_allclose(variable(once, name), variable(twice, name), rtol=1e-5, err_msg=name)


def test_network_alone_is_evaluated_by_a_combined_model_without_the_other_half(tmp_path):
    network = estimator.DNNClassifier([4], columns(), model_dir=str(tmp_path))
    network.train(data, steps=3)
    combined = estimator.DNNLinearCombinedClassifier(
        model_dir=str(tmp_path), dnn_feature_columns=columns(), dnn_hidden_units=[4]
    )
    assert combined.evaluate(data, steps=2) == network.evaluate(data, steps=2)


def test_training_writes_the_summaries_of_tf_estimator(tmp_path):
    config = estimator.RunConfig(model_dir=str(tmp_path), save_summary_steps=1)
    estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=[word()],
        dnn_feature_columns=columns(),
        dnn_hidden_units=[3, 2],
        config=config,
    ).train(data, steps=2)
    tags = {
        value.tag
        for path in glob.glob(str(tmp_path / "events.*"))
        for event in tf.compat.v1.train.summary_iterator(path)
        for value in event.summary.value
    }
    expected = {"loss", "linear/bias", "linear/fraction_of_zero_weights"}
    for layer in ("hiddenlayer_0", "hiddenlayer_1", "logits"):
        expected |= {f"dnn/{layer}/fraction_of_zero_values", f"dnn/{layer}/activation"}
    assert expected <= tags


def test_dropout_acts_in_training_only():
    dropped = estimator.DNNRegressor(
        [64], columns(), dropout=0.9, optimizer="SGD", config=estimator.RunConfig(tf_random_seed=1)
    )
    dropped.train(data, steps=1)

    def first():
        return next(dropped.predict(data))["predictions"]

    np.testing.assert_array_equal(first(), first())
    with tf.Graph().as_default() as graph:
        tf.compat.v1.train.get_or_create_global_step()
        features, labels = tf.compat.v1.data.make_one_shot_iterator(data()).get_next()
        dropped.model_fn(features, labels, estimator.ModeKeys.TRAIN, dropped.config)
        assert any("dropout" in op.name for op in graph.get_operations())


def test_activation_may_be_the_name_of_a_keras_function():
    """With softplus, no unit of the hidden layer is ever 0; with relu about half are."""
    trained = estimator.DNNRegressor(
        np.array([16]), columns(), activation_fn="softplus", config=estimator.RunConfig(save_summary_steps=1)
    )
    trained.train(data, steps=1)
    [path] = glob.glob(f"{trained.model_dir}/events.*")
    zeros = {
        value.tag: value.simple_value
        for event in tf.compat.v1.train.summary_iterator(path)
        for value in event.summary.value
    }
    assert zeros["dnn/hiddenlayer_0/fraction_of_zero_values"] == 0.0


def test_raw_receiver_exports_predict_only(tmp_path):
    """Classification needs serialised examples; with raw tensors there is `predict`, and no default."""
    canned = estimator.LinearClassifier(columns(), model_dir=str(tmp_path / "model"))
    canned.train(data, steps=1)

    def receiver():
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        return estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    path = canned.export_saved_model(str(tmp_path / "export"), receiver).decode()
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def
        assert list(signatures) == ["predict"]
        outputs = {key: info.name for key, info in signatures["predict"].outputs.items()}
        fed = session.run(outputs, {signatures["predict"].inputs["x"].name: X[:1]})
    assert fed["classes"].shape == (1, 1)
    assert fed["probabilities"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: estimator.DNNClassifier([2], columns(), optimizer="Adamm"), "Unsupported optimizer name"),
        (lambda: estimator.DNNClassifier([2], columns(), n_classes=1), "n_classes must be > 2: 1"),
        (lambda: estimator.DNNClassifier([0], columns()), r"must be whole numbers of at least 1; got \[0\]"),
        (lambda: estimator.LinearClassifier([]), "feature_columns is empty"),
        (
            lambda: estimator.LinearRegressor(columns(), sparse_combiner="max"),
            "Invalid sparse_combiner: 'max'",
        ),
        (
            lambda: estimator.LinearClassifier(columns(), label_vocabulary=[0, 1]),
            r"label_vocabulary must hold strings; got \[0, 1\]",
        ),
        (
            lambda: estimator.LinearClassifier(columns(), label_vocabulary=["a", "a"]),
            r"label_vocabulary has \['a'\] more than once",
        ),
        (lambda: estimator.DNNLinearCombinedClassifier(), "must be defined"),
        (
            lambda: estimator.DNNLinearCombinedRegressor(dnn_feature_columns=columns()),
            "dnn_hidden_units must be defined",
        ),
    ],
)
def test_bad_settings_are_refused_by_the_constructor(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_feature_that_the_input_lacks_is_named():
    canned = estimator.DNNClassifier([2], [fc.numeric_column("height")])
    with pytest.raises(ValueError, match=r"reads the feature 'height', which is not among .*\['word', 'x'\]"):
        canned.train(data, steps=1)


def test_parsing_specs_add_label_and_weight():
    spec = estimator.classifier_parse_example_spec(
        [word(), *columns()], label_key="y", weight_column="w", label_dtype=tf.string, label_default="up"
    )
    assert spec == {
        "word": tf.io.VarLenFeature(tf.string),
        "x": tf.io.FixedLenFeature((2,), tf.float32),
        "y": tf.io.FixedLenFeature((1,), tf.string, "up"),
        "w": tf.io.FixedLenFeature((1,), tf.float32),
    }
    regression = estimator.regressor_parse_example_spec(columns(), label_key="y", label_dimension=3)
    assert regression["y"] == tf.io.FixedLenFeature((3,), tf.float32)
    with pytest.raises(ValueError, match="label should not be used as feature"):
        estimator.regressor_parse_example_spec(columns(), label_key="x")
    with pytest.raises(ValueError, match="weight_column should not be used as feature"):
        estimator.classifier_parse_example_spec(columns(), label_key="y", weight_column="x")
    with pytest.raises(ValueError, match=r"weight_column should be a name or .*Given type: int"):
        estimator.classifier_parse_example_spec(columns(), label_key="y", weight_column=3)
