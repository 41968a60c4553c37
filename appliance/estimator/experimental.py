"""The names of `tf.estimator.experimental`, in TensorFlow 2 and in `tf.compat.v1`."""

from __future__ import annotations

from appliance.estimator.canned.kmeans import KMeans
from appliance.estimator.canned.rnn import RNNClassifier, RNNEstimator
from appliance.estimator.canned.sdca import LinearSDCA
from appliance.estimator.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from appliance.estimator.export import build_raw_supervised_input_receiver_fn
from appliance.estimator.hooks.in_memory import InMemoryEvaluatorHook
from appliance.estimator.logits import call_logit_fn

__all__ = [
    "InMemoryEvaluatorHook",
    "KMeans",
    "LinearSDCA",
    "RNNClassifier",
    "RNNEstimator",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
