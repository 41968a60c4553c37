"""Heads for several labels, with links, and several heads at once: numbers by hand, eagerly and in graphs."""

import numpy as np
import pytest
import tensorflow as tf

from appliance import estimator
from appliance.estimator import (
    BinaryClassHead,
    LogisticRegressionHead,
    ModeKeys,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)
from tests.appliance.test_heads import in_graph, numbers

LOGITS = np.array([[-1.0, 1.0], [-1.5, 1.5]], np.float32)
HOT = np.array([[1, 0], [1, 1]], np.int64)


def softplus(x):
    return np.log1p(np.exp(x))


def test_multi_label_head_takes_indicators_ids_and_names():
    """Cross entropies: softplus(1) twice for one example, softplus(1.5) and softplus(-1.5) for the other."""
    expected = (softplus(1) * 2 + softplus(1.5) + softplus(-1.5)) / 4
    head = MultiLabelHead(2)
    named = MultiLabelHead(2, label_vocabulary=["cow", "hen"])
    ids = tf.sparse.SparseTensor([[0, 0], [1, 0], [1, 1]], tf.constant([0, 1, 0]), [2, 2])
    names = tf.sparse.from_dense([["cow", ""], ["hen", "cow"]])
    assert head.loss(HOT, LOGITS).numpy() == pytest.approx(expected)
    assert head.loss(HOT.astype(np.float32), LOGITS).numpy() == pytest.approx(expected)
    assert head.loss(ids, LOGITS).numpy() == pytest.approx(expected)
    assert named.loss(names, LOGITS).numpy() == pytest.approx(expected)
    assert named.loss(HOT, LOGITS).numpy() == pytest.approx(expected)
    weighted = MultiLabelHead(2, weight_column="w", loss_reduction="sum")
    first, second = softplus(1), (softplus(1.5) + softplus(-1.5)) / 2
    assert weighted.loss(HOT, LOGITS, {"w": [[2.0], [0.5]]}).numpy() == pytest.approx(first * 2 + second / 2)


def test_multi_label_head_predicts_each_class_by_itself():
    head = MultiLabelHead(2, label_vocabulary=["cow", "hen"], thresholds=[0.2], name="farm")
    predictions = head.predictions(LOGITS)
    assert list(predictions) == ["logits", "probabilities", "classes"]
    np.testing.assert_allclose(predictions["probabilities"], 1 / (1 + np.exp(-LOGITS)), rtol=1e-6)
    assert predictions["classes"].numpy().tolist() == [[b"cow", b"hen"]] * 2
    metrics = numbers(head.update_metrics(head.metrics(), {}, LOGITS, HOT))
    # Probabilities 0.27, 0.73, 0.18, 0.82; labels 1, 0, 1, 1.
    assert metrics["accuracy/positive_threshold_0.2/farm"] == pytest.approx(0.5)
    assert metrics["recall/positive_threshold_0.2/farm"] == pytest.approx(2 / 3)
    assert metrics["auc/farm"] == pytest.approx(1 / 3, abs=1e-3)


def test_own_loss_function_of_multi_label_head_sees_indicators():
    def loss_fn(labels, logits, features):
        assert labels.dtype == tf.int64
        return tf.reduce_sum(tf.cast(labels, tf.float32), axis=-1, keepdims=True) * features["scale"]

    head = MultiLabelHead(2, loss_fn=loss_fn)
    ids = tf.sparse.SparseTensor([[0, 0], [1, 0], [1, 1]], tf.constant([0, 1, 0]), [2, 2])
    assert head.loss(ids, LOGITS, {"scale": 3.0}).numpy() == pytest.approx(4.5)


@pytest.mark.parametrize("kind", ["labels", "logistic", "poisson"])
def test_graph_metrics_equal_keras_metrics(kind):
    random = np.random.RandomState(3)
    head, width = {
        "labels": (MultiLabelHead(3, "w", [0.25], classes_for_class_based_metrics=[0, 2], name="h"), 3),
        "logistic": (LogisticRegressionHead("w"), 1),
        "poisson": (PoissonRegressionHead(2, "w"), 2),
    }[kind]
    high = {"labels": 2, "logistic": 2, "poisson": 6}[kind]
    batches = [
        (
            {"w": random.uniform(0, 2, (n, 1)).astype(np.float32)},
            random.normal(0, 1, (n, width)).astype(np.float32),
            random.randint(high, size=(n, width)),
        )
        for n in (30, 50, 7)
    ]
    metrics = head.metrics()
    for features, logits, labels in batches:
        head.update_metrics(metrics, features, logits, labels)
    assert in_graph(head, ModeKeys.EVAL, batches) == pytest.approx(numbers(metrics), rel=1e-5, abs=1e-6)


def test_regressions_with_a_link():
    logistic, poisson = LogisticRegressionHead(), PoissonRegressionHead()
    assert logistic.loss([[0.25]], [[1.0]]).numpy() == pytest.approx(softplus(1) - 0.25)
    assert logistic.predictions([[1.0]])["predictions"].numpy() == pytest.approx(1 / (1 + np.exp(-1)))
    # exp(1) - 2 x 1, and Stirling's approximation of log(2!).
    stirling = 2 * np.log(2) - 2 + 0.5 * np.log(2 * np.pi * 2)
    assert poisson.loss([[2]], [[1.0]]).numpy() == pytest.approx(np.e - 2 + stirling)
    plain = PoissonRegressionHead(compute_full_loss=False)
    assert plain.loss([[2.0]], [[1.0]]).numpy() == pytest.approx(np.e - 2)
    predictions = poisson.predictions([[1.0]])
    assert {key: value.numpy()[0, 0] for key, value in predictions.items()} == pytest.approx(
        {"predictions": np.e, "logits": 1.0}
    )
    with pytest.raises(ValueError, match=r"in range \[0, 1\].*Given: \[\[1.5\]\]"):
        logistic.loss([[1.5]], [[1.0]])
    with pytest.raises(ValueError, match=r"counts and must be >= 0. Given: \[\[-1\.\]\]"):
        poisson.loss([[-1]], [[1.0]])


def both():
    return MultiHead([RegressionHead(name="much"), BinaryClassHead(name="whether")], head_weights=[1.0, 0.5])


MUCH, WHETHER = np.array([[3.0], [1.0]], np.float32), np.array([[1], [1]])


def test_multi_head_sums_weighted_losses_and_merges_keys():
    head = both()
    logits = {"much": np.zeros((2, 1), np.float32), "whether": np.zeros((2, 1), np.float32)}
    labels = {"much": MUCH, "whether": WHETHER}
    expected = 5.0 + 0.5 * np.log(2)
    assert head.name == "much_whether"
    assert head.logits_dimension == 2
    assert head.loss(labels, logits).numpy() == pytest.approx(expected)
    stacked = np.zeros((2, 2), np.float32)
    assert head.loss(labels, stacked, regularization_losses=[1.0]).numpy() == pytest.approx(expected + 1)
    metrics = numbers(head.update_metrics(head.metrics(), {}, stacked, labels))
    assert metrics["loss/much"] == pytest.approx(5.0)
    assert metrics["loss/whether"] == metrics["average_loss/whether"] == pytest.approx(np.log(2))
    assert metrics["label/mean/much"] == pytest.approx(2.0)
    batch = ({}, stacked, labels)
    assert in_graph(head, ModeKeys.EVAL, [batch]) == pytest.approx(metrics)
    assert ("whether", "logistic") in head.predictions(stacked)
    only = head.predictions(stacked, [("much", "predictions")])
    assert list(only) == [("much", "predictions")]


def test_multi_head_serves_the_first_head_by_default_and_each_by_name():
    with tf.Graph().as_default():
        spec = both().create_estimator_spec(features={}, mode=ModeKeys.PREDICT, logits=tf.zeros([2, 2]))
        outputs = spec.export_outputs
        assert set(outputs) == {
            "serving_default",
            "predict",
            "much",
            "much/regression",
            "much/predict",
            "whether",
            "whether/classification",
            "whether/regression",
            "whether/predict",
        }
        assert outputs["serving_default"] is outputs["much"]
        assert {"much/predictions", "whether/classes"} < set(outputs["predict"].outputs)


def test_multi_head_trains_and_predicts_by_pairs(tmp_path):
    x = np.linspace(0, 1, 8, dtype=np.float32)[:, None]
    labels = {"much": 2 * x, "whether": (x > 0.5).astype(np.int64)}
    canned = estimator.LinearEstimator(
        both(), [tf.feature_column.numeric_column("x")], optimizer="Adam", model_dir=str(tmp_path)
    )

    def data():
        return tf.data.Dataset.from_tensor_slices(({"x": x}, labels)).batch(8)

    canned.train(lambda: data().repeat(60))
    metrics = canned.evaluate(data)
    assert metrics["loss"] == pytest.approx(metrics["loss/much"] + 0.5 * metrics["loss/whether"], rel=1e-5)
    assert metrics["accuracy/whether"] == 1.0
    key = ("whether", "classes")
    found = [row[key][0] for row in canned.predict(data, predict_keys=[key])]
    assert found == [b"0"] * 4 + [b"1"] * 4


BAD_LABELS = {
    "wide": (MultiLabelHead(3), HOT, "Expected labels dimension=3. Received 2"),
    "not_hot": (MultiLabelHead(2), [[2, 0], [0, 1]], "0 or 1 a class.*Given"),
    "id": (
        MultiLabelHead(2),
        tf.sparse.from_dense([[1, 0], [0, 5]]),
        r"integer SparseTensor.*label < n_classes.*Given: \[1 5\]",
    ),
    "float_ids": (MultiLabelHead(2), tf.sparse.from_dense([[0.5], [1.5]]), "should be integer.*float32"),
    "no_names": (MultiLabelHead(2), tf.sparse.from_dense([["a"], ["b"]]), "has no label_vocabulary"),
    "unknown": (
        MultiLabelHead(2, label_vocabulary=["a", "b"]),
        tf.sparse.from_dense([["a"], ["c"]]),
        "counts as -1",
    ),
    "dense_names": (MultiLabelHead(2), [["a"], ["b"]], "must be a SparseTensor of the names"),
    "none": (MultiLabelHead(2), None, "You must provide a labels Tensor"),
    "not_a_dict": (both(), 1, r"labels must be a dict.*\['much', 'whether'\]"),
    "missing": (both(), {"much": MUCH}, r"labels has missing values for head\(s\): \['whether'\]"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_refused(case):
    head, labels, message = BAD_LABELS[case]
    with pytest.raises(ValueError, match=message):
        head.loss(labels, np.zeros((2, head.logits_dimension), np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiLabelHead(1), "n_classes must be > 1"),
        (lambda: MultiLabelHead(2, thresholds=[1.0]), r"thresholds not in \(0, 1\): \[1.0\]"),
        (lambda: MultiLabelHead(2, classes_for_class_based_metrics=[2]), r"in range \[0, 1\]. Given: 2"),
        (
            lambda: MultiLabelHead(2, classes_for_class_based_metrics=["a"]),
            "label_vocabulary must be",
        ),
        (
            lambda: MultiLabelHead(2, label_vocabulary=["a", "b"], classes_for_class_based_metrics=["c"]),
            "names 'c', which is not in the label_vocabulary",
        ),
        (lambda: MultiHead([]), "Must specify heads"),
        (lambda: MultiHead([RegressionHead()]), "All given heads must have name specified"),
        (lambda: MultiHead([RegressionHead(name="a")], [1.0, 2.0]), "must have the same size"),
        (lambda: MultiHead([RegressionHead(name="a")] * 2), "must have different names"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_heads_of_a_multi_head_must_reduce_alike_and_fit_the_logits():
    mixed = MultiHead([RegressionHead(name="a", loss_reduction="sum"), MultiClassHead(3, name="b")])
    with pytest.raises(ValueError, match="loss_reduction must be the same"):
        _ = mixed.loss_reduction
    with pytest.raises(ValueError, match=r"split logits of shape \(2, 3\).*\[1, 3\].*equal 4 but is 3"):
        mixed.predictions(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"logits has missing values for head\(s\): \['b'\]"):
        mixed.predictions({"a": np.zeros((2, 1), np.float32)})
