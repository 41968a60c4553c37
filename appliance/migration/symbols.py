"""What becomes of each symbol of tf.estimator and TF.Learn here."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["same", "changed", "gone"]


class Outcome(NamedTuple):
    """What becomes of one symbol.

    Fields:
        kind: `same`: change the import; `changed`: it is here, with a difference to know of; `gone`: it is
            not.
        replacement: the dotted name below `appliance`; empty when there is none.
        note: the difference, or what to do instead.
    """

    kind: Kind
    replacement: str
    note: str = ""


_ROOT = "estimator."

SAME = frozenset(
    {
        "BaselineClassifier",
        "BaselineEstimator",
        "BaselineRegressor",
        "BestExporter",
        "BinaryClassHead",
        "CheckpointSaverHook",
        "CheckpointSaverListener",
        "DNNClassifier",
        "DNNEstimator",
        "DNNLinearCombinedClassifier",
        "DNNLinearCombinedEstimator",
        "DNNLinearCombinedRegressor",
        "DNNRegressor",
        "Estimator",
        "EstimatorSpec",
        "EvalSpec",
        "Exporter",
        "FeedFnHook",
        "FinalExporter",
        "FinalOpsHook",
        "GlobalStepWaiterHook",
        "Head",
        "LatestExporter",
        "LinearClassifier",
        "LinearEstimator",
        "LinearRegressor",
        "LoggingTensorHook",
        "LogisticRegressionHead",
        "ModeKeys",
        "MultiClassHead",
        "MultiHead",
        "MultiLabelHead",
        "NanLossDuringTrainingError",
        "NanTensorHook",
        "PoissonRegressionHead",
        "ProfilerHook",
        "RegressionHead",
        "RunConfig",
        "SecondOrStepTimer",
        "SessionRunArgs",
        "SessionRunContext",
        "SessionRunHook",
        "SessionRunValues",
        "StepCounterHook",
        "StopAtStepHook",
        "SummarySaverHook",
        "TrainSpec",
        "VocabInfo",
        "WarmStartSettings",
        "add_metrics",
        "classifier_parse_example_spec",
        "experimental.InMemoryEvaluatorHook",
        "experimental.KMeans",
        "experimental.LinearSDCA",
        "experimental.RNNClassifier",
        "experimental.RNNEstimator",
        "experimental.build_raw_supervised_input_receiver_fn",
        "experimental.call_logit_fn",
        "experimental.make_early_stopping_hook",
        "experimental.make_stop_at_checkpoint_step_hook",
        "experimental.stop_if_higher_hook",
        "experimental.stop_if_lower_hook",
        "experimental.stop_if_no_decrease_hook",
        "experimental.stop_if_no_increase_hook",
        "export.ClassificationOutput",
        "export.EvalOutput",
        "export.ExportOutput",
        "export.PredictOutput",
        "export.RegressionOutput",
        "export.ServingInputReceiver",
        "export.TensorServingInputReceiver",
        "export.build_parsing_serving_input_receiver_fn",
        "export.build_raw_serving_input_receiver_fn",
        "regressor_parse_example_spec",
        "train_and_evaluate",
    }
)
"""The v2 symbols of `tf.estimator`: only the import changes."""

_V1_LOSS = "v1 sums the loss over the batch: pass loss_reduction='sum' to keep that"
_V1_SLOTS = "a v1 checkpoint's weights are read, its optimizer's slots have other names and start afresh"
_V1_CANNED = frozenset(
    f"{kind}{task}"
    for kind in ("Baseline", "DNN", "DNNLinearCombined", "Linear")
    for task in ("Classifier", "Regressor", "Estimator")
)

_OTHERS: dict[str, Outcome] = {
    "tf.compat.v1.estimator.inputs.numpy_input_fn": Outcome("same", "estimator.inputs.numpy_input_fn"),
    "tf.compat.v1.estimator.inputs.pandas_input_fn": Outcome("same", "estimator.inputs.pandas_input_fn"),
    "tf.compat.v1.estimator.experimental.KMeans": Outcome("same", "estimator.experimental.KMeans"),
    "tf.keras.estimator.model_to_estimator": Outcome(
        "changed", "estimator.model_to_estimator", "it takes Keras 3 models, of tf.keras or keras"
    ),
    "tf.contrib.learn.Experiment": Outcome("same", "estimator.Experiment"),
    "tf.contrib.learn.ExportStrategy": Outcome("same", "estimator.ExportStrategy"),
    "tf.contrib.learn.make_export_strategy": Outcome("same", "estimator.make_export_strategy"),
    "tf.contrib.learn.learn_runner.run": Outcome("same", "estimator.learn_runner.run"),
    "tf.contrib.learn.RunConfig": Outcome(
        "changed", "estimator.RunConfig", "fields that TensorFlow 1.x dropped from it are refused by name"
    ),
    "tf.contrib.estimator.add_metrics": Outcome("same", "estimator.add_metrics"),
    "tf.contrib.tensor_forest.client.random_forest.TensorForestEstimator": Outcome(
        "changed",
        "estimator.RandomForestClassifier",
        "fitted by scikit-learn; checkpoints of tensor_forest are not read",
    ),
    "tf.estimator.BoostedTreesClassifier": Outcome(
        "gone", "", "its kernels left TensorFlow; try estimator.RandomForestClassifier, or export from 2.15"
    ),
    "tf.estimator.tpu": Outcome("gone", "", "TPUs are not supported"),
}
_OTHERS["tf.compat.v1.keras.estimator.model_to_estimator"] = _OTHERS["tf.keras.estimator.model_to_estimator"]
_BOOSTED = "BoostedTrees"
_V2_PREFIXES = ("tf.estimator.", "tf.compat.v2.estimator.")
_V1_PREFIX = "tf.compat.v1.estimator."
WATCHED = (
    "tf.estimator",
    "tf.compat.v1.estimator",
    "tf.compat.v2.estimator",
    "tf.contrib",
    "tf.keras.estimator",
    "tf.compat.v1.keras.estimator",
)
"""Everything below these names is reported."""
NAMESPACES = frozenset(
    {*WATCHED, "tf.contrib.learn", "tf.contrib.learn.learn_runner", "tf.contrib.estimator"}
)
"""Modules: what counts is what is taken from them."""


def outcome_of(symbol: str) -> Outcome:
    """Return what becomes of a symbol.

    Args:
        symbol: the dotted name with TensorFlow as `tf`: `tf.estimator.DNNClassifier`.
    """
    if symbol in _OTHERS:
        return _OTHERS[symbol]
    rest = symbol.rpartition("estimator.")[2] if "estimator." in symbol else ""
    if rest.startswith(_BOOSTED):
        return _OTHERS["tf.estimator.BoostedTreesClassifier"]
    if symbol.startswith(_V2_PREFIXES) and rest in SAME:
        return Outcome("same", _ROOT + rest)
    if symbol.startswith(_V1_PREFIX) and rest in SAME:
        if rest in _V1_CANNED:
            return Outcome("changed", _ROOT + rest, f"{_V1_LOSS}; {_V1_SLOTS}")
        return Outcome("same", _ROOT + rest)
    if ".tpu." in symbol or symbol.endswith(".tpu"):
        return _OTHERS["tf.estimator.tpu"]
    return Outcome("gone", "", "there is no counterpart; see docs/migrate.md for what to do instead")
