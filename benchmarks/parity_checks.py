"""One small use of each public symbol, that fails when the symbol does not do what its name promises."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from appliance import estimator

Check = Callable[[], None]
_EPOCH = [[0.0], [1.0], [2.0], [3.0]]
_CLASSES = [[0], [0], [1], [1]]
_VALUES = [[1.0], [3.0], [5.0], [7.0]]


def numeric(labels: Any) -> Callable[[], Any]:
    """Return an input_fn of four examples with one feature."""
    return lambda: tf.data.Dataset.from_tensors(({"x": _EPOCH}, labels)).repeat(4)


def columns() -> list[Any]:
    """Return the columns of that feature."""
    return [tf.feature_column.numeric_column("x")]


def receiver() -> Any:
    """Return a receiver of serialized examples of that feature."""
    spec = {"x": tf.io.FixedLenFeature([1], tf.float32)}
    return estimator.export.build_parsing_serving_input_receiver_fn(spec)()


def learns(make: Callable[..., Any], labels: Any, metric: str, key: str) -> Check:
    """Return a check that an Estimator trains, evaluates, predicts, exports and lists its variables."""

    def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = make(model_dir=folder)
            model.train(numeric(labels), steps=3)
            metrics = model.evaluate(numeric(labels), steps=1)
            assert metrics["global_step"] == 3, metrics
            assert np.isfinite(metrics[metric]), metrics
            assert len([each[key] for each in model.predict(numeric(labels))]) == 16
            path = model.export_saved_model(os.path.join(folder, "export"), receiver)
            assert os.path.isfile(os.path.join(os.fsdecode(path), "saved_model.pb"))
            assert "global_step" in model.get_variable_names()

    return check


def canned(kind: str) -> dict[str, Check]:
    """Return the checks of one kind's classifier, regressor and estimator."""
    given: dict[str, Any] = {
        "Baseline": {},
        "Linear": {"feature_columns": columns()},
        "DNN": {"feature_columns": columns(), "hidden_units": [2]},
        "DNNLinearCombined": {
            "linear_feature_columns": columns(),
            "dnn_feature_columns": columns(),
            "dnn_hidden_units": [2],
        },
    }[kind]

    def made(task: str, **more: Any) -> Callable[..., Any]:
        return lambda **where: getattr(estimator, kind + task)(**given, **more, **where)

    head = estimator.RegressionHead()
    return {
        f"{kind}Classifier": learns(made("Classifier"), _CLASSES, "auc", "class_ids"),
        f"{kind}Regressor": learns(made("Regressor"), _VALUES, "average_loss", "predictions"),
        f"{kind}Estimator": learns(made("Estimator", head=head), _VALUES, "average_loss", "predictions"),
    }


def head(make: Callable[[], Any], logits: Any, labels: Any, expected: float) -> Check:
    """Return a check of a head used by itself in eager code: its loss, against one worked out by hand."""

    def check() -> None:
        made = make()
        features = {"x": tf.constant(_EPOCH[: len(logits)])}
        loss = made.loss(labels=labels, logits=logits, features=features, mode=estimator.ModeKeys.TRAIN)
        assert abs(float(loss) - expected) < 1e-5, float(loss)
        assert made.predictions(logits)

    return check


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Fit y = w x by gradient descent."""
    weight = tf.compat.v1.get_variable("w", [1, 1], initializer=tf.compat.v1.zeros_initializer())
    y = tf.matmul(features["x"], weight)
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions={"y": y})
    loss = tf.reduce_mean(tf.square(y - labels), name="mean_square")
    step = tf.compat.v1.train.get_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
    hooks = params["hooks"](loss) if "hooks" in params else None
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        training_hooks=hooks,
        eval_metric_ops={"error": tf.compat.v1.metrics.mean_absolute_error(labels, y)},
    )


def hooked(
    make: Callable[[Any, str], Any], then: Callable[[Any, str], None] = lambda hook, folder: None
) -> Check:
    """Return a check that trains with the hook that `make(estimator, model_dir)` gives, then looks at it."""

    def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = estimator.Estimator(model_fn, folder, params={})
            model.train(numeric(_VALUES), steps=1)
            hook = make(model, folder)
            model.train(numeric(_VALUES), hooks=[hook], steps=3)
            then(hook, folder)

    return check


def is_tensorflows_own(name: str) -> Check:
    """Return a check that a symbol is the class that TensorFlow itself uses, so that old hooks fit."""

    def check() -> None:
        assert getattr(estimator, name) is getattr(tf.compat.v1.train, name)

    return check


def exports(make: Callable[[], Any], count: int) -> Check:
    """Return a check of an exporter: how many exports two evaluations of a training leave."""

    def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = estimator.RunConfig(folder, save_checkpoints_steps=5)
            model = estimator.LinearRegressor(columns(), config=config)
            exporter = make()
            estimator.train_and_evaluate(
                model,
                estimator.TrainSpec(lambda: numeric(_VALUES)().repeat(), max_steps=10),
                estimator.EvalSpec(
                    numeric(_VALUES), 1, exporters=exporter, start_delay_secs=0, throttle_secs=0
                ),
            )
            names = os.listdir(os.path.join(folder, "export", exporter.name))
            assert sum(name.isdigit() for name in names) == count, names

    return check


def stops(make: Callable[[Any], Any], at: int) -> Check:
    """Return a check that a hook stops a training of 20 steps at a given one."""

    def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = estimator.Estimator(model_fn, folder, params={})
            model.train(numeric(_VALUES), steps=1)
            model.evaluate(numeric(_VALUES), steps=1)
            model.train(lambda: numeric(_VALUES)().repeat(), hooks=[make(model)], max_steps=20)
            assert model.get_variable_value("global_step") == at

    return check


def sequences() -> Any:
    """Return two sequences of words and their labels."""
    words = tf.sparse.from_dense([["a", "b", "a"], ["b", "", ""]])
    return tf.data.Dataset.from_tensors(({"words": words}, [[0], [1]])).repeat(4)


def word_columns() -> list[Any]:
    """Return the sequence columns of those words."""
    words = tf.feature_column.sequence_categorical_column_with_vocabulary_list("words", ["a", "b"])
    return [tf.feature_column.embedding_column(words, 2)]


def recurs(make: Callable[[], Any], key: str) -> Check:
    """Return a check that a recurrent Estimator trains, evaluates and predicts."""

    def check() -> None:
        model = make()
        model.train(sequences, steps=2)
        assert np.isfinite(model.evaluate(sequences, steps=1)["average_loss"])
        assert len([each[key] for each in model.predict(sequences)]) == 8

    return check


def evaluates_in_memory() -> None:
    """The hook evaluates in the training process, at the begin, every two steps and at the end."""
    model = estimator.Estimator(model_fn, params={})
    hook = estimator.experimental.InMemoryEvaluatorHook(model, numeric(_VALUES), steps=1, every_n_iter=2)
    model.train(numeric(_VALUES), hooks=[hook], steps=4)
    assert os.listdir(model.eval_dir())


def solves_by_dual_ascent() -> None:
    """LinearSDCA fits a line."""
    sdca = estimator.experimental.LinearSDCA("id", symmetric_l2_regularization=0.1)
    features = {"x": _EPOCH, "id": [["1"], ["2"], ["3"], ["4"]]}
    model = estimator.LinearRegressor(columns(), optimizer=sdca)
    data = tf.data.Dataset.from_tensors
    before = model.evaluate(lambda: data((features, _VALUES)), steps=1)["loss"]
    model.train(lambda: data((features, _VALUES)).repeat(), steps=20)
    assert model.evaluate(lambda: data((features, _VALUES)), steps=1)["loss"] < before / 10


def calls_logit_fn() -> None:
    """A logit_fn gets those of the arguments that it names."""
    result = estimator.experimental.call_logit_fn(
        lambda features, mode: tf.constant([[1.0]]), {"x": 1}, estimator.ModeKeys.EVAL, {}, None
    )
    assert result.shape == (1, 1)


def receives(make: Callable[[], Any], keys: set[str]) -> Check:
    """Return a check of an input receiver: the names of what it takes."""

    def check() -> None:
        with tf.Graph().as_default():
            assert set(make()().receiver_tensors) == keys

    return check


def gives_signature(make: Callable[[], Any], method: str) -> Check:
    """Return a check of an export output: the method of the signature that it becomes."""

    def check() -> None:
        with tf.Graph().as_default():
            x = {"inputs": tf.compat.v1.placeholder(tf.string, [None])}
            assert make().as_signature_def(x).method_name == method

    return check


def holds(make: Callable[[], Any], **expected: Any) -> Check:
    """Return a check of a record: some of its fields."""

    def check() -> None:
        made = make()
        assert {name: getattr(made, name) for name in expected} == expected

    return check


def refuses(make: Callable[[], Any], text: str) -> Check:
    """Return a check that bad arguments are refused with a text."""

    def check() -> None:
        with pytest.raises((ValueError, TypeError), match=text):
            make()

    return check


def warm_starts() -> None:
    """A second model begins with the weights of the first."""
    first = estimator.Estimator(model_fn, params={})
    first.train(numeric(_VALUES), steps=4)
    settings = estimator.WarmStartSettings(first.model_dir, vars_to_warm_start="w")
    second = estimator.Estimator(model_fn, params={}, warm_start_from=settings)
    loss = second.evaluate(numeric(_VALUES), steps=1)["loss"]
    assert loss == first.evaluate(numeric(_VALUES), steps=1)["loss"]


def adds_metrics() -> None:
    """The metric that was added is evaluated with the others."""
    model = estimator.add_metrics(
        estimator.LinearRegressor(columns()),
        lambda labels: {"largest": tf.compat.v1.metrics.mean(tf.reduce_max(labels))},
    )
    assert model.evaluate(numeric(_VALUES), steps=1)["largest"] == 7.0


def alternates() -> None:
    """train_and_evaluate trains to the last step and evaluates there."""
    model = estimator.LinearRegressor(columns())
    metrics, _ = estimator.train_and_evaluate(
        model,
        estimator.TrainSpec(lambda: numeric(_VALUES)().repeat(), max_steps=5),
        estimator.EvalSpec(numeric(_VALUES), 1),
    )
    assert metrics["global_step"] == 5


def parses(make: Callable[[], Any], keys: set[str]) -> Check:
    """Return a check of a parse-example spec: its keys."""

    def check() -> None:
        assert set(make()) == keys

    return check


def nan_is_told() -> None:
    """A loss that becomes NaN ends the training with the error of that name."""
    with pytest.raises(estimator.NanLossDuringTrainingError):
        estimator.LinearRegressor(columns()).train(numeric([[float("nan")]] * 4), steps=1)
