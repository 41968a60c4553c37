"""Which check shows that a symbol of tf.estimator, or of TF.Learn, behaves."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from appliance import estimator
from benchmarks import parity_checks as checks
from benchmarks.parity_checks import Check

_train = tf.compat.v1.train
_fn = checks.model_fn
_data = checks.numeric([[1.0], [3.0], [5.0], [7.0]])


def _placeholder(dtype: Any = tf.float32) -> Any:
    return tf.compat.v1.placeholder(dtype, [None])


def _experimental(name: str, *args: Any, **kwargs: Any) -> Any:
    return lambda model: getattr(estimator.experimental, name)(model, *args, **kwargs)


def table() -> dict[str, Check]:
    """Return the check of each symbol, by its dotted name."""
    zero, ln2 = [[0.0], [0.0]], math.log(2.0)
    found: dict[str, Check] = {}
    for kind in ("Baseline", "Linear", "DNN", "DNNLinearCombined"):
        found |= checks.canned(kind)
    found |= {
        "Head": checks.holds(estimator.RegressionHead, logits_dimension=1),
        "BinaryClassHead": checks.head(estimator.BinaryClassHead, zero, [[0.0], [1.0]], ln2),
        "LogisticRegressionHead": checks.head(
            lambda: estimator.LogisticRegressionHead(), zero, [[0.25], [0.75]], ln2
        ),
        "MultiClassHead": checks.head(
            lambda: estimator.MultiClassHead(3), [[0.0] * 3] * 2, [[0], [2]], math.log(3.0)
        ),
        "MultiLabelHead": checks.head(
            lambda: estimator.MultiLabelHead(2), [[0.0] * 2] * 2, [[0, 1], [1, 1]], ln2
        ),
        "RegressionHead": checks.head(estimator.RegressionHead, zero, [[1.0], [3.0]], 5.0),
        "PoissonRegressionHead": checks.head(
            lambda: estimator.PoissonRegressionHead(compute_full_loss=False), zero, [[1.0], [3.0]], 1.0
        ),
        "MultiHead": checks.head(
            lambda: estimator.MultiHead(
                [estimator.RegressionHead(name="a"), estimator.RegressionHead(name="b")]
            ),
            {"a": tf.constant(zero), "b": tf.constant(zero)},
            {"a": tf.constant([[1.0], [1.0]]), "b": tf.constant([[2.0], [2.0]])},
            5.0,
        ),
    }
    for name in [
        "CheckpointSaverHook",
        "CheckpointSaverListener",
        "FeedFnHook",
        "FinalOpsHook",
        "GlobalStepWaiterHook",
        "LoggingTensorHook",
        "NanTensorHook",
        "ProfilerHook",
        "SecondOrStepTimer",
        "SessionRunArgs",
        "SessionRunContext",
        "SessionRunHook",
        "SessionRunValues",
        "StepCounterHook",
        "StopAtStepHook",
        "SummarySaverHook",
    ]:
        found[name] = checks.is_tensorflows_own(name)
    found |= {
        "NanLossDuringTrainingError": checks.nan_is_told,
        "Estimator": checks.learns(
            lambda **where: estimator.Estimator(_fn, params={}, **where),
            [[1.0], [3.0], [5.0], [7.0]],
            "error",
            "y",
        ),
        "EstimatorSpec": checks.refuses(
            lambda: estimator.EstimatorSpec(estimator.ModeKeys.TRAIN, loss=tf.constant(1.0)), "train_op"
        ),
        "ModeKeys": checks.holds(lambda: estimator.ModeKeys, TRAIN="train", EVAL="eval", PREDICT="infer"),
        "RunConfig": checks.holds(
            lambda: estimator.RunConfig("/tmp/m"),
            save_checkpoints_secs=600,
            keep_checkpoint_max=5,
            is_chief=True,
        ),
        "TrainSpec": checks.holds(lambda: estimator.TrainSpec(_data, 5), max_steps=5, hooks=()),
        "EvalSpec": checks.holds(lambda: estimator.EvalSpec(_data), steps=100, throttle_secs=600),
        "train_and_evaluate": checks.alternates,
        "Exporter": checks.exports(lambda: estimator.LatestExporter("each", checks.receiver), 2),
        "LatestExporter": checks.exports(
            lambda: estimator.LatestExporter("latest", checks.receiver, exports_to_keep=1), 1
        ),
        "FinalExporter": checks.exports(lambda: estimator.FinalExporter("final", checks.receiver), 1),
        "BestExporter": checks.exports(lambda: estimator.BestExporter("best", checks.receiver), 2),
        "WarmStartSettings": checks.warm_starts,
        "VocabInfo": checks.holds(lambda: estimator.VocabInfo("new", 3, 0, "old"), new_vocab_size=3, axis=0),
        "add_metrics": checks.adds_metrics,
        "classifier_parse_example_spec": checks.parses(
            lambda: estimator.classifier_parse_example_spec(checks.columns(), "y"), {"x", "y"}
        ),
        "regressor_parse_example_spec": checks.parses(
            lambda: estimator.regressor_parse_example_spec(checks.columns(), "y"), {"x", "y"}
        ),
    }
    return found | _experiments() | _exports() | _tf_learn()


def _experiments() -> dict[str, Check]:
    rnn = {"sequence_feature_columns": checks.word_columns(), "units": [2], "cell_type": "gru"}
    metric = {"metric_name": "loss", "run_every_secs": None, "run_every_steps": 1}
    return {
        f"experimental.{name}": check
        for name, check in {
            "InMemoryEvaluatorHook": checks.evaluates_in_memory,
            "LinearSDCA": checks.solves_by_dual_ascent,
            "KMeans": _clusters,
            "RNNClassifier": checks.recurs(lambda: estimator.experimental.RNNClassifier(**rnn), "class_ids"),
            "RNNEstimator": checks.recurs(
                lambda: estimator.experimental.RNNEstimator(head=estimator.BinaryClassHead(), **rnn),
                "class_ids",
            ),
            "build_raw_supervised_input_receiver_fn": checks.receives(
                lambda: estimator.experimental.build_raw_supervised_input_receiver_fn(
                    {"x": _placeholder()}, {"y": _placeholder()}
                ),
                {"x", "y"},
            ),
            "call_logit_fn": checks.calls_logit_fn,
            "make_early_stopping_hook": checks.stops(
                _experimental(
                    "make_early_stopping_hook", lambda: True, run_every_secs=None, run_every_steps=1
                ),
                2,
            ),
            "make_stop_at_checkpoint_step_hook": checks.hooked(
                lambda model, folder: estimator.experimental.make_stop_at_checkpoint_step_hook(model, 2, 0)
            ),
            "stop_if_higher_hook": checks.stops(
                _experimental("stop_if_higher_hook", threshold=-1.0, **metric), 2
            ),
            "stop_if_lower_hook": checks.stops(
                _experimental("stop_if_lower_hook", threshold=1e9, **metric), 2
            ),
            "stop_if_no_decrease_hook": checks.stops(
                _experimental("stop_if_no_decrease_hook", max_steps_without_decrease=100, **metric), 20
            ),
            "stop_if_no_increase_hook": checks.stops(
                _experimental("stop_if_no_increase_hook", max_steps_without_increase=100, **metric), 20
            ),
        }.items()
    }


def _exports() -> dict[str, Check]:
    export = estimator.export
    feature = {"x": tf.io.FixedLenFeature([1], tf.float32)}
    serving = "tensorflow/serving/"
    return {
        "export.ClassificationOutput": checks.gives_signature(
            lambda: export.ClassificationOutput(scores=_placeholder(), classes=_placeholder(tf.string)),
            serving + "classify",
        ),
        "export.RegressionOutput": checks.gives_signature(
            lambda: export.RegressionOutput(_placeholder()), serving + "regress"
        ),
        "export.PredictOutput": checks.gives_signature(
            lambda: export.PredictOutput(_placeholder()), serving + "predict"
        ),
        "export.EvalOutput": checks.gives_signature(
            lambda: export.EvalOutput(loss=_placeholder()), "tensorflow/supervised/eval"
        ),
        "export.ExportOutput": checks.gives_signature(
            lambda: export.PredictOutput({"y": _placeholder()}), serving + "predict"
        ),
        "export.ServingInputReceiver": checks.holds(
            lambda: export.ServingInputReceiver({"x": tf.constant(1)}, {"x": tf.constant(1)}),
            receiver_tensors_alternatives=None,
        ),
        "export.TensorServingInputReceiver": checks.holds(
            lambda: export.TensorServingInputReceiver(tf.constant(1), {"x": tf.constant(1)}),
            receiver_tensors_alternatives=None,
        ),
        "export.build_parsing_serving_input_receiver_fn": checks.receives(
            lambda: export.build_parsing_serving_input_receiver_fn(feature), {"examples"}
        ),
        "export.build_raw_serving_input_receiver_fn": checks.receives(
            lambda: export.build_raw_serving_input_receiver_fn({"x": _placeholder()}), {"x"}
        ),
    }


def _clusters() -> None:
    points = np.array([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [9.1, 9.0]], np.float32)
    kmeans = estimator.experimental.KMeans(2, use_mini_batch=False, seed=1)
    data = functools.partial(tf.data.Dataset.from_tensors, points)
    for _ in range(5):
        kmeans.train(lambda: data().repeat(2), steps=2)
    assert kmeans.score(data) < 0.1


def _experiment(**more: Any) -> Any:
    model = estimator.LinearRegressor(checks.columns())
    return estimator.Experiment(
        model, lambda: _data().repeat(), _data, train_steps=4, eval_steps=1, eval_delay_secs=0, **more
    )


def _experiment_runs() -> None:
    metrics, _ = _experiment().train_and_evaluate()
    assert metrics["global_step"] == 4


def _strategy_exports() -> None:
    experiment = _experiment(export_strategies=estimator.make_export_strategy(checks.receiver))
    _, exports = experiment.train_and_evaluate()
    assert len(exports) == 1


def _learn_runner_runs() -> None:
    config = estimator.RunConfig(estimator.Estimator(_fn, params={}).model_dir)

    def experiment(run_config: Any, hparams: Any) -> Any:
        return estimator.Experiment(
            estimator.LinearRegressor(checks.columns(), config=run_config), _data, _data, train_steps=2
        )

    estimator.learn_runner.run(experiment, run_config=config, schedule="train")
    assert tf.train.load_variable(config.model_dir, "global_step") == 2


def _numpy_feeds() -> None:
    x = np.arange(4, dtype=np.float32)[:, None]
    feed = estimator.inputs.numpy_input_fn({"x": x}, 2 * x + 1, batch_size=4, num_epochs=None, shuffle=False)
    estimator.LinearRegressor(checks.columns()).train(feed, steps=2)


def _pandas_feeds() -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [0.0, 1.0]})
    feed = estimator.inputs.pandas_input_fn(
        frame, pd.Series([1.0, 3.0]), batch_size=2, num_epochs=None, shuffle=False
    )
    estimator.LinearRegressor(checks.columns()).train(feed, steps=2)


def _keras_converts() -> None:
    keras_model = tf.keras.Sequential([tf.keras.Input([1], name="x"), tf.keras.layers.Dense(1)])
    keras_model.compile(optimizer="sgd", loss="mse")
    model = estimator.model_to_estimator(keras_model)
    model.train(_data, steps=2)
    assert np.isfinite(model.evaluate(_data, steps=1)["loss"])


def _sklearn_fits() -> None:
    from appliance.estimator import sklearn as ours

    x = np.array([[0.0], [1.0], [2.0], [3.0]] * 8)
    model = ours.LinearClassifier(random_state=0).fit(x, (x[:, 0] > 1).astype(int))
    assert model.score(x, (x[:, 0] > 1).astype(int)) > 0.7


def _tf_learn() -> dict[str, Check]:
    forest = {"feature_columns": checks.columns(), "num_trees": 3}
    return {
        "Experiment": _experiment_runs,
        "ExportStrategy": _strategy_exports,
        "make_export_strategy": _strategy_exports,
        "learn_runner.run": _learn_runner_runs,
        "inputs.numpy_input_fn": _numpy_feeds,
        "inputs.pandas_input_fn": _pandas_feeds,
        "model_to_estimator": _keras_converts,
        "RandomForestClassifier": checks.learns(
            lambda **where: estimator.RandomForestClassifier(**forest, **where),
            [[0], [0], [1], [1]],
            "auc",
            "class_ids",
        ),
        "RandomForestRegressor": checks.learns(
            lambda **where: estimator.RandomForestRegressor(**forest, **where),
            [[1.0], [3.0], [5.0], [7.0]],
            "average_loss",
            "predictions",
        ),
        "sklearn.LinearClassifier": _sklearn_fits,
    }
