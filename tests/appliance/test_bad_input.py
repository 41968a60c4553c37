"""What people get wrong: each error names the thing and what to do about it."""

import logging
import pickle

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


def test_model_dir_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match=r"Cannot write checkpoints to the model_dir '.*file/model'.*another"):
        classifier(blocked / "model").train(data(), steps=1)


def test_steps_that_are_done_already_are_not_done_again(tmp_path, caplog):
    model = classifier(tmp_path).train(data(), steps=2)
    with caplog.at_level(logging.INFO, logger="appliance.estimator"):
        assert model.train(lambda: pytest.fail("no data is needed"), max_steps=2) is model
    assert [record.message for record in caplog.records] == ["training_skipped"]
    assert caplog.records[0].max_steps == 2


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
            lambda: classifier(n_classes=3).train(data(y=Y + 2)),
            tf.errors.InvalidArgumentError,
            "label < n_classes",
        ),
        (
            lambda: classifier(optimizer="Adamm"),
            ValueError,
            "'Adamm'. Supported names are: Adagrad, Adam, Ftrl, RMSProp, SGD",
        ),
    ],
)
def test_features_labels_and_names_that_do_not_fit_are_named(train, error, message):
    with pytest.raises(error, match=message):
        train()
