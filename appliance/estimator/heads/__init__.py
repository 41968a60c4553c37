"""Heads: from logits to loss, predictions, metrics and export outputs; for graphs and for eager code."""

from appliance.estimator.heads.base import Head
from appliance.estimator.heads.binary_class import BinaryClassHead
from appliance.estimator.heads.links import LogisticRegressionHead, PoissonRegressionHead
from appliance.estimator.heads.multi_class import MultiClassHead
from appliance.estimator.heads.multi_head import MultiHead
from appliance.estimator.heads.multi_label import MultiLabelHead
from appliance.estimator.heads.regression import RegressionHead

__all__ = [
    "BinaryClassHead",
    "Head",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "RegressionHead",
]
