"""The scikit-learn estimators beside scikit-learn's own tools, and on the way to a canned Estimator."""

import copy
import pickle
import subprocess
import sys

import joblib
import numpy as np
import pytest
import tensorflow as tf
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from appliance import estimator
from appliance.estimator.sklearn import DNNClassifier, DNNRegressor, LinearClassifier, LinearRegressor
from appliance.estimator.sklearn.rows import Rows

X, FLOWERS = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X).astype(np.float32)
NAMES = np.array(["setosa", "versicolor", "virginica"])[FLOWERS]
FAST = {"hidden_units": (8,), "learning_rate": 0.05, "max_epochs": 20, "random_state": 0}
ALL = [DNNClassifier(**FAST), DNNRegressor(**FAST), LinearClassifier(max_epochs=20), LinearRegressor()]


def name_of(model):
    return type(model).__name__


def outputs(model):
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


def canned_outputs(canned):
    """What the canned Estimator says about the same examples."""
    predictions = canned.predict(lambda: tf.data.Dataset.from_tensor_slices({"x": X}).batch(50))
    key = "predictions" if "Regressor" in type(canned).__name__ else "probabilities"
    return np.array([prediction[key] for prediction in predictions])


def test_search_over_a_pipeline_that_passes_data_frames():
    """The parameters of a model in a pipeline are searched; the names of the columns reach the model."""
    frame, y = load_iris(return_X_y=True, as_frame=True)
    pipeline = make_pipeline(StandardScaler(), DNNClassifier(**FAST)).set_output(transform="pandas")
    search = GridSearchCV(pipeline, {"dnnclassifier__hidden_units": [(2,), (8,)]}, cv=3)
    search.fit(frame, y)
    assert search.best_params_ == {"dnnclassifier__hidden_units": (8,)}
    assert search.score(frame, y) > 0.9
    assert search.best_estimator_[-1].feature_names_in_.tolist() == frame.columns.tolist()


def test_cross_validation_of_a_regressor_beats_the_mean():
    features, y = load_diabetes(return_X_y=True, scaled=True)
    scores = cross_val_score(LinearRegressor(learning_rate=20.0), features * 20, y, cv=3)
    assert scores.min() > 0.3


@pytest.mark.parametrize("model", ALL, ids=name_of)
def test_pickled_model_predicts_and_goes_on_training_the_same(model):
    """The optimizer's state travels too; an open session does not."""
    there = clone(model)
    arguments = {"classes": [0, 1, 2]} if hasattr(model, "predict_proba") else {}
    there.partial_fit(X[:100], FLOWERS[:100], **arguments)
    back, copied = pickle.loads(pickle.dumps(there)), copy.deepcopy(there)
    np.testing.assert_array_equal(outputs(back), outputs(there))
    for each in (there, back, copied):
        each.partial_fit(X[100:], FLOWERS[100:])
    np.testing.assert_allclose(outputs(back), outputs(there), rtol=1e-5)
    np.testing.assert_allclose(outputs(copied), outputs(there), rtol=1e-5)
    assert there.variables_["global_step"] == 2


def test_another_process_predicts_from_a_pickle(tmp_path):
    path = tmp_path / "model.pickle"
    model = LinearClassifier(max_epochs=20).fit(X, NAMES)
    path.write_bytes(pickle.dumps(model))
    program = f"""
import pickle, pathlib
print(pickle.loads(pathlib.Path({str(path)!r}).read_bytes()).predict([[0, 0, 0, 0]])[0])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert run.stdout.strip() == model.predict([[0, 0, 0, 0]])[0], run.stderr


@pytest.mark.parametrize("activation", ["elu", "linear", "relu", "sigmoid", "tanh"])
def test_canned_estimator_predicts_the_same_whatever_the_activation(activation, tmp_path):
    model = DNNClassifier(**FAST | {"activation": activation, "hidden_units": (5, 4), "steps": 3})
    model.fit(X, FLOWERS)
    made = model.to_estimator(str(tmp_path))
    assert isinstance(made, estimator.DNNClassifier)
    np.testing.assert_allclose(canned_outputs(made), outputs(model), atol=1e-6)


@pytest.mark.parametrize("model", ALL, ids=name_of)
def test_canned_estimator_evaluates_and_goes_on_training(model):
    """Its checkpoint has everything: the step, and the optimizer's variables."""
    model = clone(model).set_params(steps=7, batch_size=50)
    model.fit(X, FLOWERS)
    canned = model.to_estimator()
    assert type(canned) is getattr(estimator, type(model).__name__)
    expected = outputs(model)
    expected = expected[:, np.newaxis] if expected.ndim == 1 else expected
    np.testing.assert_allclose(canned_outputs(canned), expected, rtol=1e-5, atol=1e-6)

    def input_fn():
        features = {"x": X, "weight": np.ones(150, np.float32)}
        return tf.data.Dataset.from_tensor_slices((features, FLOWERS)).batch(150)

    metrics = canned.evaluate(input_fn)
    assert metrics["global_step"] == 7
    if "accuracy" in metrics:
        assert metrics["accuracy"] == pytest.approx(model.score(X, FLOWERS))
    canned.train(input_fn, steps=1)
    assert canned.get_variable_value("global_step") == 8
    assert canned.evaluate(input_fn)["average_loss"] < metrics["average_loss"]


def test_labels_of_text_are_served_as_text(tmp_path):
    model = LinearClassifier(max_epochs=50).fit(X, NAMES)

    def receiver():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4])
        return estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    path = model.to_estimator(str(tmp_path / "model")).export_saved_model(str(tmp_path), receiver)
    served = tf.saved_model.load(path.decode()).signatures["predict"](x=X)
    assert [each.decode() for each in served["classes"].numpy()[:, 0]] == model.predict(X).tolist()


def test_several_targets_are_learnt_at_once():
    targets = np.stack([X[:, 0] + X[:, 1], X[:, 2], -X[:, 0]], axis=1)
    for model in (LinearRegressor(), DNNRegressor(learning_rate=0.01, random_state=0)):
        model.fit(X, targets)
        assert model.predict(X).shape == (150, 3)
        assert model.score(X, targets) > 0.95
    one = LinearRegressor().fit(X, targets[:, :1])
    assert one.predict(X).shape == (150, 1)


def test_early_stopping_keeps_the_best_pass():
    """Targets that are noise cannot be learnt: the loss on the held-out data soon rises."""
    rng = np.random.RandomState(0)
    features, noise = rng.normal(size=(80, 20)), rng.normal(size=80)
    model = DNNRegressor(
        learning_rate=0.01, early_stopping=True, validation_fraction=0.25, max_epochs=500, random_state=0
    )
    model.fit(features, noise)
    losses = model.validation_loss_curve_
    assert len(losses) == model.n_iter_ < 500
    best = int(np.argmin(losses))
    assert best == model.n_iter_ - model.n_iter_no_change - 1
    assert model.variables_["global_step"] == best + 1


def test_training_ends_when_the_loss_improves_no_more_or_the_steps_are_done():
    assert LinearClassifier(tol=10.0, n_iter_no_change=3).fit(X, FLOWERS).n_iter_ == 4
    stepped = LinearClassifier(batch_size=50, steps=5).fit(X, FLOWERS)
    assert stepped.variables_["global_step"] == 5
    assert stepped.n_iter_ == 2


def test_class_weights_move_the_decision():
    y = (X[:, 0] > 1.2).astype(int)
    noisy = X + np.random.RandomState(0).normal(size=X.shape)
    plain = LinearClassifier(random_state=0).fit(noisy, y)
    balanced = clone(plain).set_params(class_weight="balanced").fit(noisy, y)
    sums = {label: 150 / (2 * (y == label).sum()) for label in (0, 1)}
    by_dict = clone(plain).set_params(class_weight=sums).fit(noisy, y)
    assert balanced.predict(noisy).sum() > plain.predict(noisy).sum()
    np.testing.assert_allclose(by_dict.predict_proba(noisy), balanced.predict_proba(noisy), rtol=1e-4)


def test_weights_are_copies_to_the_last_bit():
    """Also their scale, and the order of the examples, make no difference."""
    counts = np.random.RandomState(1).randint(0, 3, size=60)
    copies = np.random.RandomState(2).permutation(np.repeat(np.arange(60), counts))
    shuffled = X[::2][:60], FLOWERS[::2][:60]
    weighted = DNNClassifier(**FAST).fit(*shuffled, sample_weight=counts)
    copied = DNNClassifier(**FAST).fit(shuffled[0][copies], shuffled[1][copies])
    scaled = DNNClassifier(**FAST).fit(*shuffled, sample_weight=counts * 4.0)
    np.testing.assert_array_equal(outputs(weighted), outputs(copied))
    np.testing.assert_array_equal(outputs(weighted), outputs(scaled))


def test_stream_of_batches_is_learnt():
    """partial_fit sees the data once, piece by piece; the classes are told at first."""
    rng = np.random.RandomState(0)
    model = DNNClassifier((16,), learning_rate=0.01, random_state=0)
    for _ in range(60):
        features = rng.uniform(-1, 1, size=(64, 2))
        labels = np.where(features[:, 0] * features[:, 1] > 0, "same", "other")
        model.partial_fit(features, labels, classes=["same", "other"])
    assert model.variables_["global_step"] == 60
    assert model.score(features, labels) > 0.85


def test_learning_rate_can_change_between_pieces_and_the_model_cannot():
    model = LinearRegressor(optimizer="SGD", learning_rate=0.1).partial_fit(X, FLOWERS)
    before = model.variables_["linear/linear_model/x/weights"]
    model.set_params(learning_rate=1e-30).partial_fit(X, FLOWERS)
    np.testing.assert_array_equal(model.variables_["linear/linear_model/x/weights"], before)
    network = DNNRegressor((4,)).partial_fit(X, FLOWERS).set_params(hidden_units=(5,))
    with pytest.raises(ValueError, match=r"no variable dnn/hiddenlayer_0/\w+ of shape .* call fit"):
        network.partial_fit(X, FLOWERS)


def test_keras_optimizer_and_dropout_are_taken():
    model = DNNClassifier((32,), dropout=0.5, optimizer=tf.keras.optimizers.Adam(0.05), random_state=0)
    assert clone(model).fit(X, FLOWERS).score(X, FLOWERS) > 0.9


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DNNClassifier(hidden_units=(0,)), r"hidden_units must be whole numbers of at least 1; got \(0,\)"),
        (DNNClassifier(activation="gelu"), r"activation must be one of \['elu'"),
        (DNNClassifier(dropout=1.0), "dropout must be at least 0 and less than 1"),
        (LinearClassifier(optimizer="Adamm"), "Unsupported optimizer name: 'Adamm'"),
        (LinearClassifier(batch_size=0), "batch_size must be a whole number of at least 1; got 0"),
        (LinearClassifier(learning_rate=-1), "learning_rate must be a positive number"),
        (LinearClassifier(class_weight="even"), "class_weight must be a dict"),
        (LinearClassifier(class_weight={"0": 2.0}), r"for \['0'\], which are no classes .* for \[0, 1, 2\]"),
        (LinearRegressor(validation_fraction=1.0), "validation_fraction must be a number between 0 and 1"),
        (LinearRegressor(optimizer="SGD", learning_rate=1e6), r"loss became (inf|nan) .* StandardScaler"),
    ],
)
def test_bad_parameters_are_refused_by_fit(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, FLOWERS)


def test_bad_calls_of_partial_fit_are_refused():
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        LinearClassifier().partial_fit(X, FLOWERS)
    model = LinearClassifier().partial_fit(X, FLOWERS, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"labels \[5\], which are not among the classes"):
        model.partial_fit(X, np.full(150, 5))
    with pytest.raises(ValueError, match="is not what it was before"):
        model.partial_fit(X, FLOWERS, classes=[0, 1])
    with pytest.raises(ValueError, match="does not support early_stopping"):
        LinearRegressor(early_stopping=True).partial_fit(X, FLOWERS)
    with pytest.raises(ValueError, match="class_weight='balanced' is not supported by partial_fit"):
        LinearClassifier(class_weight="balanced").partial_fit(X, FLOWERS)
    with pytest.raises(ValueError, match="y has 2 targets; it had 1"):
        LinearRegressor().partial_fit(X, FLOWERS).partial_fit(X, X[:, :2])


def test_the_library_needs_no_scikit_learn_and_this_part_says_that_it_does():
    program = """
import sys
sys.modules["sklearn"] = None  # As if it were not installed.
import appliance.estimator
try:
    import appliance.estimator.sklearn
except ModuleNotFoundError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert "pip install 'estimator-appliance[sklearn]'" in run.stdout, run.stderr


def test_sparse_features_are_learnt_as_dense_ones():
    """The encoder of a pipeline makes a sparse matrix, of which no dense copy is made."""
    words = NAMES[:, np.newaxis]
    encoded = OneHotEncoder().fit_transform(words)
    assert sparse.issparse(encoded)
    thin = DNNClassifier(**FAST).fit(encoded, FLOWERS)
    thick = DNNClassifier(**FAST).fit(encoded.toarray(), FLOWERS)
    np.testing.assert_array_equal(thin.predict_proba(encoded), thick.predict_proba(encoded.toarray()))
    pipeline = make_pipeline(OneHotEncoder(), LinearClassifier(early_stopping=True, random_state=0))
    assert pipeline.fit(words, FLOWERS).score(words, FLOWERS) == 1.0


def test_sparse_matrix_of_the_caller_stays_as_it_is():
    """Entries that are given twice are added up in a copy."""
    twice = sparse.csr_matrix((np.float32([1, 2, 3]), [0, 0, 1], [0, 2, 3]), shape=(2, 2))
    model = LinearRegressor(learning_rate=1.0).fit(twice, [3.0, 6.0])
    assert twice.nnz == 3
    np.testing.assert_allclose(model.predict([[3, 0], [0, 3]]), [3, 6], atol=0.05)


@pytest.mark.parametrize("model", [DNNClassifier(**FAST), LinearClassifier(max_epochs=50)], ids=name_of)
def test_examples_may_have_several_classes(model, tmp_path):
    """A column of 0 and 1 for each class: probabilities are independent, in the canned Estimator too."""
    several = np.stack([X[:, 0] > 0, X[:, 0] > 1, X[:, 2] > 0], axis=1).astype(int)
    model = clone(model).set_params(early_stopping=True, random_state=0).fit(X, several)
    assert model.predict(X).shape == (150, 3)
    assert (model.predict(X) == several).mean() > 0.9
    assert model.predict_proba(X).sum(axis=1).max() > 1.5
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    np.testing.assert_allclose(canned_outputs(model.to_estimator(str(tmp_path))), outputs(model), atol=1e-6)
    streamed = clone(model).set_params(early_stopping=False).partial_fit(X, several)
    with pytest.raises(ValueError, match="must have 3 columns as before"):
        streamed.partial_fit(X, several[:, :2])
    with pytest.raises(ValueError, match="for examples of one class each"):
        clone(model).set_params(class_weight="balanced").fit(X, several)
    with pytest.raises(ValueError, match="must hold 0 or 1 for each class"):
        model.fit(X, several * 2 - 1)


@pytest.mark.parametrize("flowers", [FLOWERS, np.eye(3)[FLOWERS].astype(int)], ids=["one", "several"])
def test_validation_loss_is_the_canned_estimators(flowers):
    """The loss that early stopping watches is computed apart: here on the training data."""
    model = DNNClassifier(**FAST).fit(X, flowers)
    targets = flowers if flowers.ndim == 2 else flowers[:, np.newaxis]
    weights = np.random.RandomState(0).uniform(1, 3, size=150)

    def input_fn():
        features = {"x": X, "weight": weights.astype(np.float32)}
        return tf.data.Dataset.from_tensor_slices((features, targets.astype(np.int64))).batch(50)

    expected = model.to_estimator().evaluate(input_fn)["average_loss"]
    rows = Rows(X, targets, weights)
    assert model._mean_loss(model._logits(model.variables_, X), rows) == pytest.approx(expected, rel=1e-5)


def test_models_are_trained_in_threads_at_once():
    """Each has a graph and a session of its own, so the scores are those of one after the other."""
    one_by_one = cross_val_score(DNNClassifier(**FAST), X, FLOWERS, cv=4)
    with joblib.parallel_backend("threading", n_jobs=4):
        at_once = cross_val_score(DNNClassifier(**FAST), X, FLOWERS, cv=4)
    np.testing.assert_array_equal(at_once, one_by_one)
