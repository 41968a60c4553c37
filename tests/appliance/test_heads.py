"""Heads without an Estimator: numbers by hand, in eager code and in graphs."""

import numpy as np
import pytest
import tensorflow as tf

from appliance import estimator
from appliance.estimator import BinaryClassHead, ModeKeys, MultiClassHead, RegressionHead

LOGITS = np.array([[45.0], [-41.0]], np.float32)


def numbers(metrics):
    return {key: float(metric.result()) for key, metric in metrics.items()}


def in_graph(head, mode, batches, **arguments):
    """Build the spec over batches of (features, logits, labels) and return what a session makes of it."""
    first = batches[0]
    with tf.Graph().as_default():
        tf.compat.v1.train.get_or_create_global_step()
        placeholders = tf.nest.map_structure(
            lambda v: tf.compat.v1.placeholder(v.dtype, [None, *v.shape[1:]]), first
        )
        features, logits, labels = placeholders
        spec = head.create_estimator_spec(
            features=features, mode=mode, logits=logits, labels=labels, **arguments
        )
        feeds = [
            dict(zip(tf.nest.flatten(placeholders), tf.nest.flatten(batch), strict=True)) for batch in batches
        ]
        with tf.compat.v1.Session() as session:
            session.run(
                [tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()]
            )
            if mode != ModeKeys.EVAL:
                return session.run(spec.predictions if mode == ModeKeys.PREDICT else spec.loss, feeds[0])
            updates = {key: pair[1] for key, pair in spec.eval_metric_ops.items()}
            for feed in feeds:
                session.run([updates, spec.loss], feed)
            return session.run({key: pair[0] for key, pair in spec.eval_metric_ops.items()})


def test_binary_head_computes_in_eager_code():
    head = BinaryClassHead()
    labels = np.array([[1], [1]], np.int32)
    # Cross entropies 0 and 41.
    assert head.loss(labels, LOGITS).numpy() == pytest.approx(20.5)
    assert head.loss(labels[:, 0], LOGITS, regularization_losses=[1.0, 0.5]).numpy() == pytest.approx(22.0)
    updated = head.update_metrics(head.metrics(), {}, LOGITS, labels)
    assert numbers(updated) == pytest.approx(
        {
            "accuracy": 0.5,
            "accuracy_baseline": 1.0,
            "auc": 0.0,
            "auc_precision_recall": 1.0,
            "average_loss": 20.5,
            "label/mean": 1.0,
            "precision": 1.0,
            "prediction/mean": 0.5,
            "recall": 0.5,
        }
    )
    predictions = head.predictions(LOGITS)
    assert {key: (value.dtype.name, value.shape.as_list()) for key, value in predictions.items()} == {
        "logits": ("float32", [2, 1]),
        "logistic": ("float32", [2, 1]),
        "probabilities": ("float32", [2, 2]),
        "class_ids": ("int64", [2, 1]),
        "classes": ("string", [2, 1]),
        "all_class_ids": ("int32", [2, 2]),
        "all_classes": ("string", [2, 2]),
    }
    assert predictions["classes"].numpy().tolist() == [[b"1"], [b"0"]]
    assert list(head.predictions(LOGITS, ["classes", "logits"])) == ["classes", "logits"]


def test_weighted_loss_divides_by_the_batch_and_average_loss_by_the_weights():
    head = RegressionHead(weight_column="w")
    features = {"w": np.array([1.0, 2.0], np.float32)}
    logits, labels = np.zeros((2, 1), np.float32), np.array([[3.0], [3.0]])
    assert head.loss(labels, logits, features).numpy() == pytest.approx(13.5)
    assert RegressionHead(weight_column="w", loss_reduction="sum").loss(labels, logits, features) == 27.0
    metrics = numbers(head.update_metrics(head.metrics(), features, logits, labels))
    assert metrics == pytest.approx({"average_loss": 9.0, "prediction/mean": 0.0, "label/mean": 3.0})


def test_regression_of_several_values_divides_by_all_of_them():
    head = RegressionHead(label_dimension=2, weight_column="w", inverse_link_fn=tf.exp)
    logits, labels = np.zeros((2, 2), np.float32), np.array([[1.0, 2.0], [3.0, 4.0]])
    per_example = {"w": np.array([[1.0], [3.0]])}
    assert head.loss(labels, logits, per_example).numpy() == pytest.approx((5 + 3 * 25) / 4)
    per_value = {"w": np.array([[1.0, 0.0], [0.0, 2.0]])}
    assert head.loss(labels, logits, per_value).numpy() == pytest.approx((1 + 2 * 16) / 4)
    predictions = head.predictions(logits)
    assert predictions["predictions"].numpy().tolist() == [[1.0, 1.0]] * 2
    assert predictions["logits"].numpy().tolist() == [[0.0, 0.0]] * 2


def test_multi_class_head_learns_names_from_the_vocabulary():
    head = MultiClassHead(3, label_vocabulary=["cow", "hen", "pig"])
    logits = np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], np.float32))
    labels = np.array([["pig"], ["cow"]])
    assert head.loss(labels, logits).numpy() == pytest.approx(-(np.log(0.3) + np.log(0.6)) / 2)
    metrics = numbers(head.update_metrics(head.metrics(), {}, logits, labels))
    assert metrics["accuracy"] == 0.5
    assert set(metrics) == {"accuracy", "average_loss"}
    predictions = head.predictions(logits)
    assert predictions["classes"].numpy().tolist() == [[b"hen"], [b"cow"]]
    assert predictions["all_classes"].numpy()[0].tolist() == [b"cow", b"hen", b"pig"]
    np.testing.assert_allclose(predictions["probabilities"], np.exp(logits), rtol=1e-6)
    long = [f"word{i:03}" for i in range(100)]
    many = MultiClassHead(100, label_vocabulary=long)
    assert many.loss(np.array(["word007"]), np.eye(100, dtype=np.float32)[[7]] * 50).numpy() == pytest.approx(
        0
    )


@pytest.mark.parametrize("kind", ["binary", "soft", "three", "real"])
def test_graph_metrics_equal_keras_metrics(kind):
    """The pairs of an evaluation graph end where Keras' metrics do, over batches and weights."""
    random = np.random.RandomState(3)
    head, width = {
        "binary": (BinaryClassHead("w", thresholds=[0.25, 0.9], name="h"), 1),
        "soft": (BinaryClassHead("w"), 1),
        "three": (MultiClassHead(3, "w"), 3),
        "real": (RegressionHead(1, "w"), 1),
    }[kind]
    labels = {
        "binary": lambda n: random.randint(2, size=(n, 1)),
        "soft": lambda n: random.uniform(0, 1, (n, 1)) * random.randint(2, size=(n, 1)),
        "three": lambda n: random.randint(3, size=(n, 1)),
        "real": lambda n: random.normal(size=(n, 1)),
    }[kind]
    batches = [
        (
            {"w": random.uniform(0, 2, (n, 1)).astype(np.float32)},
            random.normal(0, 2, (n, width)).astype(np.float32),
            labels(n),
        )
        for n in (30, 50, 7)
    ]
    metrics = head.metrics()
    for features, logits, batch_labels in batches:
        head.update_metrics(metrics, features, logits, batch_labels)
    assert in_graph(head, ModeKeys.EVAL, batches) == pytest.approx(numbers(metrics), rel=1e-5, abs=1e-6)
    if kind == "binary":
        assert "precision/positive_threshold_0.25/h" in metrics
        assert all(key.endswith("/h") for key in metrics)


def test_regularization_is_in_the_loss_and_reported_but_not_in_the_average():
    head = RegressionHead()
    batch = ({}, np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32))
    metrics = in_graph(head, ModeKeys.EVAL, [batch], regularization_losses=[0.5])
    assert metrics["average_loss"] == 1.0
    assert metrics["regularization_loss"] == 0.5
    no_op = {"train_op_fn": lambda loss: tf.no_op()}
    assert in_graph(head, ModeKeys.TRAIN, [batch], regularization_losses=[0.5], **no_op) == 1.5


def test_prediction_spec_has_the_outputs_that_serving_expects():
    binary, multi, real = BinaryClassHead(), MultiClassHead(3), RegressionHead()
    expected = {
        binary: {"classification", "predict", "regression"},
        multi: {"classification", "predict"},
        real: {"predict", "regression"},
    }
    for head, names in expected.items():
        with tf.Graph().as_default():
            logits = tf.zeros([2, head.logits_dimension])
            spec = head.create_estimator_spec(features={}, mode=ModeKeys.PREDICT, logits=logits)
            outputs = spec.export_outputs
            assert set(outputs) == names | {"serving_default"}
            default = "regression" if head is real else "classification"
            assert outputs["serving_default"] is outputs[default]


def test_own_loss_function_sees_processed_labels():
    def loss_fn(labels, logits, features):
        return tf.abs(labels - logits) * features["scale"]

    head = BinaryClassHead(label_vocabulary=["no", "yes"], loss_fn=loss_fn)
    loss = head.loss(np.array(["yes", "no"]), np.zeros((2, 1), np.float32), {"scale": 3.0})
    assert loss.numpy() == pytest.approx(1.5)
    with pytest.raises(ValueError, match=r"loss_fn must return Tensor of shape \[D0, D1, ... DN, 1\]"):
        BinaryClassHead(loss_fn=lambda labels, logits: tf.reduce_sum(logits)).loss([[1]], [[0.0]])
    with pytest.raises(ValueError, match="loss_fn must contain argument: labels"):
        BinaryClassHead(loss_fn=lambda logits: logits)
    with pytest.raises(ValueError, match=r"loss_fn has unexpected args: \['extra'\]"):
        BinaryClassHead(loss_fn=lambda labels, logits, extra: logits)


BAD_LABELS = {
    "none": (BinaryClassHead(), None, "You must provide a labels Tensor"),
    "sparse": (BinaryClassHead(), tf.sparse.from_dense([[1], [1]]), "SparseTensor labels are not supported"),
    "dict": (BinaryClassHead(), {"a": [[1]]}, r"got a dict with the keys \['a'\]"),
    "wide": (BinaryClassHead(), [[1, 0], [0, 1]], "Expected labels dimension=1. Received 2"),
    "few": (BinaryClassHead(), [[1]], r"expected_labels_shape: \(2, 1\). labels_shape: \(1, 1\)"),
    "large": (BinaryClassHead(), [[2], [0]], r"<= n_classes - 1 = 1 \(0 <= label, label < n_classes\)"),
    "negative": (MultiClassHead(3), [[-1], [0]], "Labels must be >= 0"),
    "float": (MultiClassHead(3), [[1.0], [0.0]], r"should be integer. Instead got float32.*\[0, 3\)"),
    "string": (BinaryClassHead(), [["a"], ["b"]], "has no label_vocabulary"),
    "string_class": (MultiClassHead(3), [["a"], ["b"]], "should be integer. Instead got string"),
    "not_string": (BinaryClassHead(label_vocabulary=["a", "b"]), [[1], [0]], "should be string"),
    "unknown": (BinaryClassHead(label_vocabulary=["a", "b"]), [["a"], ["c"]], "counts as -1"),
    "text": (RegressionHead(), [["a"], ["b"]], "must be numbers; got string"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_refused(case):
    head, labels, message = BAD_LABELS[case]
    with pytest.raises(ValueError, match=message):
        head.loss(labels, np.zeros((2, head.logits_dimension), np.float32))


def test_bad_labels_and_weights_are_refused_at_run_time_of_a_graph():
    def run(head, labels, weights=(1.0, 1.0)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            unknown = tf.compat.v1.placeholder_with_default
            logits = unknown(np.zeros((2, head.logits_dimension), np.float32), [None, head.logits_dimension])
            features = {"w": unknown(np.float32(weights), [None])}
            return session.run(head.loss(unknown(np.array(labels), [None, 1]), logits, features))

    refused = tf.errors.InvalidArgumentError
    with pytest.raises(refused, match=r"0 <= label, label < n_classes.*\[\[1\]\[3\]\]"):
        run(MultiClassHead(3), [[1], [3]])
    with pytest.raises(refused, match=r"expected_labels_shape: \] \[2 1\] \[ labels_shape: \] \[3 1\]"):
        run(BinaryClassHead(), [[1], [0], [0]])
    with pytest.raises(refused, match=r"expected_weights_shape: \] \[2 1\] \[ weights_shape: \] \[1 1\]"):
        run(BinaryClassHead("w"), [[1], [0]], [1.0])
    assert run(BinaryClassHead("w"), [[1], [0]]) == pytest.approx(np.log(2))


def test_bad_weights_are_refused():
    labels, logits = [[1], [0]], np.zeros((2, 1), np.float32)
    with pytest.raises(ValueError, match=r"weight column 'w' is not in the features: \['v'\]"):
        BinaryClassHead("w").loss(labels, logits, {"v": [1.0, 1.0]})
    with pytest.raises(ValueError, match=r"weights_shape: \(3, 1\)"):
        BinaryClassHead("w").loss(labels, logits, {"w": [1.0, 1.0, 1.0]})
    with pytest.raises(ValueError, match=r"'w' should be castable to float. Given dtype: string"):
        BinaryClassHead("w").loss(labels, logits, {"w": ["a", "b"]})
    with pytest.raises(TypeError, match=r"must be either a string or NumericColumn. Given type: int"):
        BinaryClassHead(3).loss(labels, logits, {})
    column = tf.feature_column.numeric_column("w", normalizer_fn=lambda w: w * 2.0)
    assert BinaryClassHead(column).loss(labels, logits, {"w": [1.0, 1.0]}).numpy() == pytest.approx(
        2 * np.log(2)
    )


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"\['a'\] more than once"):
        BinaryClassHead(label_vocabulary=["a", "a"])
    with pytest.raises(ValueError, match="one entry for each of the 3 classes; it has 2"):
        MultiClassHead(3, label_vocabulary=["a", "b"])
    with pytest.raises(ValueError, match=r"should be a list or a tuple. Given type: str"):
        BinaryClassHead(label_vocabulary="ab")
    with pytest.raises(ValueError, match="n_classes must be > 2: 2"):
        MultiClassHead(2)
    with pytest.raises(ValueError, match=r"thresholds not in \(0, 1\): \[1.5\]"):
        BinaryClassHead(thresholds=[0.5, 1.5])
    with pytest.raises(ValueError, match=r"Invalid loss_reduction: 'none'. Use one of"):
        RegressionHead(loss_reduction="none")
    with pytest.raises(ValueError, match="Invalid label_dimension 0"):
        RegressionHead(0)
    with pytest.raises(ValueError, match=r"given: nonsense. Valid prediction keys include"):
        BinaryClassHead().predictions(LOGITS, ["nonsense"])
    with pytest.raises(ValueError, match=r"logits_dimension=3, got \(2, 1\)"):
        MultiClassHead(3).predictions(LOGITS)


def test_training_spec_takes_one_optimizer_or_one_function():
    head = RegressionHead()
    batch = ({}, np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32))

    def train(**arguments):
        return in_graph(head, ModeKeys.TRAIN, [batch], **arguments)

    with pytest.raises(ValueError, match="cannot both be None"):
        train()
    with pytest.raises(ValueError, match="cannot both be set"):
        train(optimizer="SGD", train_op_fn=lambda loss: tf.no_op())
    with pytest.raises(ValueError, match="trainable_variables should be a list or a tuple"):
        train(optimizer=tf.keras.optimizers.SGD())
    with pytest.raises(ValueError, match="update_ops should be a list or a tuple"):
        train(train_op_fn=lambda loss: tf.no_op(), update_ops=3)


def test_head_trains_in_a_model_fn_of_ones_own(tmp_path):
    """A model_fn with a head, a Keras optimizer and update_ops runs through the Estimator."""

    def model_fn(features, labels, mode):
        weight = tf.compat.v1.get_variable(
            "weight", [1, 1], use_resource=True, initializer=tf.zeros_initializer()
        )
        calls = tf.compat.v1.get_variable(
            "calls", [], tf.int64, tf.zeros_initializer(), trainable=False, use_resource=True
        )
        return RegressionHead(name="r").create_estimator_spec(
            features=features,
            mode=mode,
            logits=tf.matmul(features["x"], weight),
            labels=labels,
            optimizer=tf.keras.optimizers.SGD(0.1),
            trainable_variables=[weight],
            update_ops=[calls.assign_add(1)],
        )

    def data():
        x = np.ones((20, 1), np.float32)
        return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).batch(10).repeat(10)

    trained = estimator.Estimator(model_fn, model_dir=str(tmp_path)).train(data, steps=15)
    assert trained.evaluate(data, steps=1)["average_loss/r"] < 0.01
    assert trained.get_variable_value("calls") == trained.get_variable_value("global_step") == 15
