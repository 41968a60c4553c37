"""Canned estimators: linear models, deep networks, and the two together (wide and deep)."""

from appliance.estimator.canned.combined import DNNLinearCombinedClassifier, DNNLinearCombinedRegressor
from appliance.estimator.canned.dnn import DNNClassifier, DNNRegressor
from appliance.estimator.canned.linear import LinearClassifier, LinearRegressor

__all__ = [
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearRegressor",
]
