"""Recurrent estimators: what training learns, Keras cells, padding and bad input. Numbers: test_golden."""

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import BinaryClassHead, MultiHead, RegressionHead
from appliance.estimator.experimental import RNNClassifier, RNNEstimator

fc = tf.feature_column
SIGNAL = [fc.sequence_numeric_column("signal")]


def data(size=16, seed=0, each=False, pad=0):
    """Sequences of one to four numbers; the label says whether the last one (or each) is positive."""
    random = np.random.RandomState(seed)
    lengths = random.randint(1, 5, size)
    present = np.arange(4) < lengths[:, None]
    signal = np.where(present, random.choice([-1.0, 1.0], (size, 4)), 0).astype(np.float32)
    signal = np.pad(signal, [(0, 0), (0, pad)])
    last = signal[np.arange(size), lengths - 1]
    labels = (signal > 0).astype(np.int64) if each else (last > 0).astype(np.int64)

    def input_fn(repeat=1):
        batches = tf.data.Dataset.from_tensor_slices(({"signal": signal}, labels)).repeat(repeat).batch(size)
        return batches.map(lambda x, y: ({"signal": tf.sparse.from_dense(x["signal"])}, y))

    return input_fn


def test_classifier_learns_the_last_step_of_sequences_of_any_length():
    model = RNNClassifier(SIGNAL, units=[16], cell_type="gru", optimizer=tf.keras.optimizers.Adam(0.05))
    model.train(lambda: data()(200))
    assert model.evaluate(data(seed=1))["accuracy"] == 1.0


def test_steps_that_fill_up_change_neither_metrics_nor_the_last_output():
    """The same sequences in tensors that are two steps longer."""
    each = RNNClassifier(SIGNAL, units=4, cell_type="lstm", return_sequences=True)
    each.train(lambda: data(each=True)(3))
    assert each.evaluate(data(each=True, pad=2)) == pytest.approx(each.evaluate(data(each=True)))
    [first, *_] = each.predict(data(each=True))
    assert first["sequence_mask"].dtype == bool
    assert first["class_ids"].shape == (4, 1)
    last = RNNClassifier(SIGNAL, units=[3], cell_type="lstm")
    last.train(data(), steps=1)
    found = [[row["logistic"][0] for row in last.predict(data(pad=pad))] for pad in (0, 2)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rnn_cell_fn": lambda: tf.keras.layers.GRUCell(3)},
        {"units": [3, 2], "cell_type": tf.keras.layers.LSTMCell},
    ],
)
def test_keras_cells_are_trained(arguments):
    model = RNNEstimator(RegressionHead(), SIGNAL, optimizer="Adam", **arguments)
    model.train(data(), steps=1)
    first = model.evaluate(data())["loss"]
    model.train(lambda: data()(20))
    assert model.evaluate(data())["loss"] < first


def test_a_plain_head_is_applied_to_every_step():
    model = RNNEstimator(BinaryClassHead(), SIGNAL, units=[2], return_sequences=True)
    model.train(data(each=True), steps=1)
    assert 0 <= model.evaluate(data(each=True))["accuracy"] <= 1


BAD = {
    "both": (
        lambda: RNNClassifier(SIGNAL, units=[2], rnn_cell_fn=lambda: None),
        "units and cell_type must not be specified when using rnn_cell_fn",
    ),
    "units": (lambda: RNNClassifier(SIGNAL), "units must be whole numbers of at least 1. Given: None"),
    "cell": (lambda: RNNClassifier(SIGNAL, units=[2], cell_type="tanh"), "Unknown cell_type: 'tanh'"),
    "optimizer": (lambda: RNNClassifier(SIGNAL, units=[2], optimizer="Adamm"), "Unsupported optimizer name"),
    "multi": (
        lambda: RNNEstimator(MultiHead([RegressionHead(name="a")]), SIGNAL, units=[2], return_sequences=True),
        "MultiHead cannot be applied to every step",
    ),
    "column": (
        lambda: RNNClassifier([fc.numeric_column("signal")], units=[2]).train(data(), steps=1),
        "takes columns of sequences; 'signal' is a NumericColumn",
    ),
    "missing": (
        lambda: RNNClassifier([fc.sequence_numeric_column("voice")], units=[2]).train(data(), steps=1),
        "reads the feature 'voice', which is not among",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_and_features_are_refused(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()
