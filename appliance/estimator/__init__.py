"""tf.estimator on current TensorFlow, with the Experiment of TF.Learn."""

from __future__ import annotations

from appliance.estimator import deprecations, experimental, export, inputs, learn_runner
from appliance.estimator.add_metrics import add_metrics
from appliance.estimator.canned import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from appliance.estimator.estimator import Estimator
from appliance.estimator.experiment import Experiment
from appliance.estimator.export_strategy import ExportStrategy, make_export_strategy
from appliance.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from appliance.estimator.heads import (
    BinaryClassHead,
    Head,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)
from appliance.estimator.hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    ProfilerHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from appliance.estimator.keras import model_to_estimator
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.optimizers import minimize
from appliance.estimator.parsing import classifier_parse_example_spec, regressor_parse_example_spec
from appliance.estimator.run_config import RunConfig
from appliance.estimator.specs import EvalSpec, TrainSpec
from appliance.estimator.training import train_and_evaluate
from appliance.estimator.warm_start import VocabInfo, WarmStartSettings

deprecations.install()

__all__ = [
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
    "Experiment",
    "ExportStrategy",
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
    "RandomForestClassifier",
    "RandomForestRegressor",
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
    "experimental",
    "export",
    "inputs",
    "learn_runner",
    "make_export_strategy",
    "minimize",
    "model_to_estimator",
    "regressor_parse_example_spec",
    "train_and_evaluate",
]
