"""Random forests: scikit-learn's trees, evaluated by TensorFlow."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from sklearn import ensemble

from appliance import estimator

fc = tf.feature_column
RNG = np.random.RandomState(0)
# Few distinct values, so that many examples lie exactly on a threshold.
X = RNG.randint(0, 7, size=(300, 4)).astype(np.float32) / np.float32(3)
X[RNG.uniform(size=X.shape) < 0.1] = np.nan
WORDS = RNG.choice(["a", "b", "c"], size=300)
WEIGHTS = RNG.uniform(0.5, 2, size=300).astype(np.float32)
SUM = np.nansum(X, axis=1) + (WORDS == "a")
CLASSES = np.digitize(SUM, [2.5, 4.5])
MATRIX = np.hstack([np.stack([word == WORDS for word in "abc"], axis=1), X]).astype(np.float32)
"""What the columns make of the features: by the columns' names, `word_indicator` before `x`."""


def columns():
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    return [fc.numeric_column("x", shape=(4,)), fc.indicator_column(word)]


def data(labels):
    features = {"x": X, "word": WORDS, "weight": WEIGHTS}
    return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(64)


def receiver():
    x = tf.compat.v1.placeholder(tf.float32, [None, 4])
    word = tf.compat.v1.placeholder(tf.string, [None])
    return estimator.export.ServingInputReceiver({"x": x, "word": word}, {"x": x, "word": word})


def config():
    return estimator.RunConfig(tf_random_seed=3)


@pytest.fixture(scope="module")
def forest(tmp_path_factory):
    """A trained forest for three classes, one of them without examples, with weights."""
    made = estimator.RandomForestClassifier(
        columns(),
        n_classes=4,
        num_trees=20,
        weight_column="weight",
        model_dir=str(tmp_path_factory.mktemp("forest")),
        config=config(),
    )
    return made.train(data(CLASSES))


@pytest.fixture(scope="module")
def reference():
    """The same by scikit-learn alone."""
    return ensemble.RandomForestClassifier(20, random_state=3).fit(MATRIX, CLASSES, WEIGHTS)


def test_predictions_are_those_of_scikit_learn(forest, reference):
    """Examples on a threshold and examples with missing values included; absent classes get zero."""
    predictions = list(forest.predict(data(CLASSES)))
    probabilities = np.array([p["probabilities"] for p in predictions])
    np.testing.assert_allclose(probabilities[:, :3], reference.predict_proba(MATRIX), atol=1e-6)
    np.testing.assert_allclose(probabilities[:, 3], 0, atol=1e-6)
    np.testing.assert_array_equal([p["class_ids"][0] for p in predictions], reference.predict(MATRIX))
    expected = {"logits", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes"}
    assert set(predictions[0]) == expected


def test_evaluation_has_the_metrics_of_every_classifier(forest, reference):
    metrics = forest.evaluate(data(CLASSES))
    assert set(metrics) == {"accuracy", "average_loss", "loss", "global_step"}
    assert metrics["accuracy"] == pytest.approx(reference.score(MATRIX, CLASSES, WEIGHTS), abs=1e-6)
    truth = reference.predict_proba(MATRIX)[np.arange(300), CLASSES]
    assert metrics["average_loss"] == pytest.approx(np.average(-np.log(truth), weights=WEIGHTS), abs=1e-5)
    assert metrics["global_step"] == 5


def test_importance_of_each_column_is_known(forest, reference):
    """An indicator column has the importance of all its values."""
    expected = reference.feature_importances_
    importances = forest.feature_importances()
    assert importances == pytest.approx({"word_indicator": expected[:3].sum(), "x": expected[3:].sum()})


def test_another_process_exports_it_without_scikit_learn(forest, reference, tmp_path):
    """The checkpoint is all that is needed, and the SavedModel is made of TensorFlow's own operations."""
    program = f"""
import sys
sys.modules["sklearn"] = None  # An import of it fails.
import tensorflow as tf
from appliance import estimator
columns = [tf.feature_column.numeric_column("x", shape=(4,)), tf.feature_column.indicator_column(
    tf.feature_column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"]))]
forest = estimator.RandomForestClassifier(columns, n_classes=4, model_dir={forest.model_dir!r})
spec = estimator.classifier_parse_example_spec(columns, label_key="label")
del spec["label"]
receiver = estimator.export.build_parsing_serving_input_receiver_fn(spec)
print(forest.export_saved_model({str(tmp_path)!r}, receiver).decode())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], run.stdout.split()[-1])
        operations = {node.op for node in loaded.graph_def.node}
        operations |= {node.op for f in loaded.graph_def.library.function for node in f.node_def}
        assert not operations & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
        assert set(loaded.signature_def) == {"serving_default", "classification", "predict"}
        signature = loaded.signature_def["serving_default"]
        scores, classes = session.run(
            [signature.outputs["scores"].name, signature.outputs["classes"].name],
            {signature.inputs["inputs"].name: [example(i).SerializeToString() for i in range(32)]},
        )
    np.testing.assert_allclose(scores[:, :3], reference.predict_proba(MATRIX[:32]), atol=1e-6)
    assert classes[0].tolist() == [b"0", b"1", b"2", b"3"]


def example(i):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=X[i])),
                "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[WORDS[i].encode()])),
            }
        )
    )


def test_two_classes_by_name_and_an_untrained_forest(tmp_path):
    """Before training all classes are equally likely; then labels from a vocabulary are learnt."""
    labels = np.where(SUM > 3, "yes", "no")
    made = estimator.RandomForestClassifier(
        columns(),
        label_vocabulary=["no", "yes"],
        num_trees=5,
        max_depth=3,
        model_dir=str(tmp_path),
        config=config(),
    )
    assert next(made.predict(data(labels)))["logistic"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="trained model"):
        made.feature_importances()
    made.train(data(labels), steps=2)
    predictions = list(made.predict(data(labels)))
    reference = ensemble.RandomForestClassifier(5, max_depth=3, random_state=3)
    reference.fit(MATRIX[:128], labels[:128])
    probabilities = reference.predict_proba(MATRIX)
    np.testing.assert_allclose([p["probabilities"] for p in predictions], probabilities, atol=1e-6)
    assert [p["classes"][0].decode() for p in predictions] == reference.predict(MATRIX).tolist()
    assert made.evaluate(data(labels))["auc"] > 0.9
    signatures = tf.saved_model.load(made.export_saved_model(str(tmp_path / "export"), receiver)).signatures
    served = signatures["predict"](x=X[:9], word=WORDS[:9])["probabilities"]
    np.testing.assert_allclose(served, probabilities[:9], atol=1e-6)


@pytest.mark.parametrize("dimension", [1, 2])
def test_values_are_those_of_scikit_learn(dimension, tmp_path):
    labels = np.stack([SUM, SUM**2], axis=1)[:, :dimension].astype(np.float32)
    made = estimator.RandomForestRegressor(
        columns(), label_dimension=dimension, num_trees=7, model_dir=str(tmp_path), config=config()
    )
    made.train(data(labels))
    target = labels if dimension > 1 else labels[:, 0]
    reference = ensemble.RandomForestRegressor(7, random_state=3).fit(MATRIX, target)
    predictions = np.array([p["predictions"] for p in made.predict(data(labels))])
    expected = reference.predict(MATRIX).reshape(300, dimension)
    np.testing.assert_allclose(predictions, expected, rtol=1e-6, atol=1e-6)
    metrics = made.evaluate(data(labels))
    assert metrics["average_loss"] == pytest.approx(np.mean((expected - labels) ** 2), rel=1e-5)


def test_evaluator_and_exporter_of_train_and_evaluate_see_the_forest(tmp_path):
    """The saved checkpoint is the one with the fitted forest, however often the config wants one."""
    frequent = estimator.RunConfig(model_dir=str(tmp_path), tf_random_seed=3, save_checkpoints_steps=1)
    made = estimator.RandomForestClassifier(columns(), n_classes=3, num_trees=5, config=frequent)
    exporter = estimator.FinalExporter("final", receiver)
    metrics, exports = estimator.train_and_evaluate(
        made,
        estimator.TrainSpec(data(CLASSES), max_steps=5),
        estimator.EvalSpec(data(CLASSES), steps=None, exporters=exporter),
    )
    assert metrics["accuracy"] > 0.9
    assert len(exports) == 1


def test_a_second_training_replaces_the_forest(tmp_path):
    made = estimator.RandomForestRegressor(columns(), num_trees=3, model_dir=str(tmp_path), config=config())
    made.train(data(np.zeros(300, np.float32)))
    made.train(data(np.ones(300, np.float32)))
    assert next(made.predict(data(SUM)))["predictions"] == pytest.approx(1.0)
    assert made.get_variable_value("global_step") == 10


def test_labels_that_no_forest_can_learn_are_refused(tmp_path):
    made = estimator.RandomForestClassifier(columns(), num_trees=3)
    with pytest.raises(ValueError, match=r"must be whole class ids; got 0\.5"):
        made.train(data(np.full(300, 0.5, np.float32)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="label < n_classes"):
        made.train(data(np.full(300, 2)))


def test_bad_settings_are_refused():
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b"])
    with pytest.raises(ValueError, match="cannot learn the embedding"):
        estimator.RandomForestClassifier([fc.embedding_column(word, 2)])
    with pytest.raises(ValueError, match="num_trees must be a whole number of at least 1; got 0"):
        estimator.RandomForestRegressor(columns(), num_trees=0)


def test_training_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'estimator-appliance\[sklearn\]'"):
        estimator.RandomForestRegressor(columns()).train(data(SUM), steps=1)


def test_training_in_a_cluster_is_refused(monkeypatch):
    """Each worker would fit a forest of its own."""
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    made = estimator.RandomForestRegressor(columns())
    with pytest.raises(ValueError, match=r"fitted by one process, .* has 2 workers"):
        made.train(data(SUM), steps=1)
