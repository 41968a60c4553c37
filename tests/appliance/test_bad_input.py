"""What people get wrong: each error names the thing and what to do about it."""

import logging
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from appliance import estimator
from appliance.estimator.checkpoints import CheckpointMismatch

X = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
Y = (X > 0).astype(np.int64)
COLUMNS = [tf.feature_column.numeric_column("x")]


def data(x=X, y=Y, **more):
    return lambda: tf.data.Dataset.from_tensor_slices(({"x": x, **more}, y)).batch(4)


def classifier(model_dir=None, units=3, **settings):
    return estimator.DNNClassifier([units], COLUMNS, model_dir=model_dir and str(model_dir), **settings)


def test_checkpoint_of_another_model_is_told_apart_variable_by_variable(tmp_path):
    classifier(tmp_path, units=3).train(data(), steps=1)
    with pytest.raises(CheckpointMismatch) as wider:
        classifier(tmp_path, units=5).evaluate(data())
    assert "dnn/hiddenlayer_0/kernel is (1, 5) in the model and [1, 3] in the checkpoint" in str(wider.value)
    assert "warm_start_from" in str(wider.value)
    with pytest.raises(CheckpointMismatch) as other:
        estimator.LinearClassifier(COLUMNS, model_dir=str(tmp_path)).train(data(), steps=1)
    assert "that it lacks: linear/linear_model/bias_weights (1,)" in str(other.value)
    assert "holds that the model has not: dnn/hiddenlayer_0/bias [3]" in str(other.value)
    assert str(pickle.loads(pickle.dumps(other.value))) == str(other.value)
    with pytest.raises(CheckpointMismatch, match="dnn/logits/kernel"):
        next(classifier(tmp_path, n_classes=3).predict(data()))


def receiver(name="x"):
    spec = tf.TensorSpec([None, 1], tf.float32)
    return estimator.export.build_raw_serving_input_receiver_fn({name: spec})


def test_checkpoint_of_another_model_is_not_exported(tmp_path):
    """Neither with variables that it lacks, nor silently in another shape."""
    classifier(tmp_path / "model", units=3).train(data(), steps=1)
    with pytest.raises(CheckpointMismatch, match=r"kernel is \(1, 5\) in the model and \[1, 3\] in the"):
        classifier(tmp_path / "model", units=5).export_saved_model(str(tmp_path / "exports"), receiver())
    other = estimator.LinearClassifier(COLUMNS, model_dir=str(tmp_path / "model"))
    with pytest.raises(CheckpointMismatch, match="that it lacks: linear/linear_model/bias_weights"):
        other.export_saved_model(str(tmp_path / "exports"), receiver())
    assert list((tmp_path / "exports").iterdir()) == []


def test_checkpoint_of_another_model_warm_starts_nothing(tmp_path):
    """What the checkpoint lacks, and what it has in another shape, is all in one error."""
    first = classifier(tmp_path, units=3).train(data(), steps=1)
    with pytest.raises(ValueError, match="Cannot warm-start") as wider:
        classifier(units=5, warm_start_from=first.model_dir).train(data(), steps=1)
    for variable in ("dnn/hiddenlayer_0/kernel", "dnn/hiddenlayer_0/bias", "dnn/logits/kernel"):
        assert variable in str(wider.value)
    assert "(1, 5)" in str(wider.value)
    assert "Leave these variables out" in str(wider.value)


def test_empty_data_is_an_error():
    empty = lambda: data()().take(0)  # noqa: E731
    model = classifier()
    with pytest.raises(ValueError, match=r"gave no data to train with.*drop_remainder"):
        model.train(empty)
    with pytest.raises(ValueError, match="gave no data to evaluate with"):
        model.evaluate(empty)
    assert list(model.predict(empty)) == []


def test_nan_loss_says_when_and_what_to_try():
    model = estimator.LinearRegressor(COLUMNS)
    with pytest.raises(estimator.NanLossDuringTrainingError) as caught:
        model.train(data(y=np.where(X > 0, np.nan, X)))
    [note] = caught.value.__notes__
    assert "NaN at step 2. Lower the learning rate or clip gradients" in note
    assert "look for NaN, infinities and very large numbers in the features and labels" in note


def test_model_dir_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    model = classifier(blocked / "model")
    with pytest.raises(OSError, match=r"Cannot write checkpoints to .* in '.*file/model'.*another model_dir"):
        model.train(data(), steps=1)
    with pytest.raises(OSError, match=r"Cannot write summaries to .*file/model/eval'.* or permission"):
        model.evaluate(data())


def test_steps_that_are_done_already_are_not_done_again(tmp_path, caplog):
    model = classifier(tmp_path).train(data(), steps=2)
    with caplog.at_level(logging.INFO, logger="appliance.estimator"):
        assert model.train(lambda: pytest.fail("no data is needed"), max_steps=2) is model
        assert model.train(data(), max_steps=1) is model
    assert [record.message for record in caplog.records] == ["training_skipped"] * 2
    assert [(record.step, record.max_steps) for record in caplog.records] == [(2, 2), (2, 1)]
    assert "raise it to train on" in caplog.records[0].reason
    assert model.get_variable_value("global_step") == 2


def network(*layers, dtype="float32"):
    model = keras.Sequential([keras.Input([1], name="x", dtype=dtype), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return estimator.model_to_estimator(model)


HEIGHT = [tf.feature_column.numeric_column("height")]
MISSING = r"reads the feature 'height', which is not among the features given: \['x'\]. Return it"


@pytest.mark.parametrize(
    "use",
    [
        lambda: estimator.LinearRegressor(HEIGHT).evaluate(data()),
        lambda: next(estimator.LinearRegressor(HEIGHT).predict(data())),
        lambda: estimator.RandomForestClassifier(HEIGHT, num_trees=1).train(data()),
        lambda: estimator.experimental.KMeans(2, feature_columns=HEIGHT).train(
            lambda: data()().map(lambda features, label: features)
        ),
        lambda: estimator.DNNLinearCombinedClassifier(
            linear_feature_columns=COLUMNS, dnn_feature_columns=HEIGHT, dnn_hidden_units=[2]
        ).train(data()),
    ],
)
def test_a_feature_that_is_missing_is_named_by_every_verb_and_model(use):
    with pytest.raises(ValueError, match=MISSING):
        use()


def test_a_feature_that_is_missing_in_sequences_weights_and_serving_is_named():
    column = tf.feature_column.sequence_numeric_column("heights")
    with pytest.raises(
        ValueError, match=r"'heights', which is not among the features given: \['x'\]. Return"
    ):
        estimator.experimental.RNNClassifier([column], units=[2]).train(data())
    with pytest.raises(ValueError, match=r"weight column 'heavy' is not in the features: \['x'\]. Return it"):
        classifier(weight_column="heavy").train(data())
    model = classifier().train(data(), steps=1)
    with pytest.raises(
        ValueError, match=r"given: \['y'\]. Return it .*\(when serving: from the serving input"
    ):
        model.export_saved_model(model.model_dir, receiver("y"))


WORDS = np.array(["no", "yes", "maybe", "no"] * 2)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: classifier().evaluate(data(y=Y + 1)),
            r"<= n_classes - 1 = 1 .*Raise n_classes, correct the labels.*\[2\]",
        ),
        (
            lambda: classifier(n_classes=3).train(data(y=Y - 1)),
            r"<= n_classes - 1 = 2 .*Raise n_classes, correct the labels.*\[-1\]",
        ),
        (
            lambda: classifier(label_vocabulary=["no", "yes"]).train(data(y=WORDS)),
            r"add them to the label_vocabulary: a label that is not in it counts as -1. Given: \].*\[-1\]",
        ),
        (
            lambda: estimator.DNNEstimator(estimator.LogisticRegressionHead(), [2], COLUMNS).train(
                data(y=X + 1)
            ),
            r"Labels must be in range \[0, 1\].*Let the input_fn return probabilities",
        ),
        (
            lambda: estimator.DNNEstimator(estimator.MultiLabelHead(2), [2], COLUMNS).train(
                data(y=np.hstack([Y, Y + 1]))
            ),
            r"0 or 1 a class.*To list the classes of an example, return a SparseTensor.*\[1 2\]",
        ),
        (
            lambda: estimator.DNNEstimator(estimator.PoissonRegressionHead(), [2], COLUMNS).train(data(y=X)),
            r"Labels of a Poisson regression are counts and must be >= 0. Given: \].*\[-1\]",
        ),
        (
            lambda: estimator.RandomForestClassifier(COLUMNS, num_trees=1).train(data(y=Y + 1)),
            r"<= n_classes - 1 = 1 .*Raise n_classes",
        ),
    ],
)
def test_a_label_out_of_range_is_told_with_the_bounds_and_a_remedy(use, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        use()


def test_the_label_out_of_range_is_told_wherever_it_is_in_the_batch():
    x, y = np.zeros([128, 1], np.float32), np.zeros(128, np.int64)
    y[100] = 7
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[7\]"):
        classifier().train(lambda: tf.data.Dataset.from_tensors(({"x": x}, y)))


def test_a_dtype_that_does_not_fit_an_input_of_a_keras_model_is_named():
    with pytest.raises(ValueError, match=r"input 'x' has dtype string; the input takes float32. Convert"):
        network().train(data(x=X.astype(str), y=X))
    lookup = keras.layers.StringLookup(vocabulary=["a"], output_mode="one_hot")
    with pytest.raises(ValueError, match="input 'x' has dtype float32; the input takes string"):
        network(lookup, dtype="string").train(data(y=X))


@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        (
            lambda: estimator.DNNClassifier([2], [tf.feature_column.numeric_column("height")]).train(data()),
            ValueError,
            r"reads the feature 'height', which is not among the features given: \['x'\]. Return it",
        ),
        (
            lambda: classifier().train(data(x=X.astype(str))),
            ValueError,
            "'x' has dtype string, which does not fit.*Parse the strings to numbers",
        ),
        (
            lambda: estimator.LinearClassifier(
                [tf.feature_column.categorical_column_with_identity("x", 3)]
            ).train(data()),
            ValueError,
            "'x' has dtype float32, which does not fit.*expecting int64.*use a bucketized_column",
        ),
        (
            lambda: estimator.LinearClassifier(
                [tf.feature_column.categorical_column_with_vocabulary_list("x", ["a"])]
            ).train(data(x=Y)),
            ValueError,
            "'x' has dtype int64, which does not fit.*expecting string.*Give the column dtype=tf.int64",
        ),
        (
            lambda: estimator.RandomForestClassifier(COLUMNS, num_trees=1).train(data(x=X.astype(str))),
            ValueError,
            "'x' has dtype string, which does not fit.*Parse the strings to numbers",
        ),
        (
            lambda: classifier(optimizer="Adamm"),
            ValueError,
            "'Adamm'. Supported names are: Adagrad, Adam, Ftrl, RMSProp, SGD",
        ),
        (
            lambda: estimator.LinearRegressor(COLUMNS, optimizer={"name": "Adamm", "learning_rate": 0.1}),
            ValueError,
            "'Adamm' in {'name'.*Supported names are: Adagrad, Adam, Ftrl, RMSProp, SGD",
        ),
        (
            lambda: estimator.DNNLinearCombinedClassifier(
                linear_feature_columns=COLUMNS, linear_optimizer="Adamm"
            ),
            ValueError,
            "'Adamm'. Supported names are: Adagrad, Adam, Ftrl, RMSProp, SGD",
        ),
    ],
)
def test_features_dtypes_and_names_that_do_not_fit_are_named(train, error, message):
    with pytest.raises(error, match=message):
        train()
