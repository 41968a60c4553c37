"""Canned estimators: linear models, deep networks, the two together (wide and deep), random forests."""

from appliance.estimator.canned.combined import DNNLinearCombinedClassifier, DNNLinearCombinedRegressor
from appliance.estimator.canned.dnn import DNNClassifier, DNNRegressor
from appliance.estimator.canned.forest import RandomForestClassifier, RandomForestRegressor
from appliance.estimator.canned.linear import LinearClassifier, LinearRegressor

__all__ = [
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
]
