"""Canned estimators: baselines, linear models, deep networks, wide and deep, random forests."""

from appliance.estimator.canned.baseline import BaselineClassifier, BaselineEstimator, BaselineRegressor
from appliance.estimator.canned.combined import (
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
)
from appliance.estimator.canned.dnn import DNNClassifier, DNNEstimator, DNNRegressor
from appliance.estimator.canned.forest import RandomForestClassifier, RandomForestRegressor
from appliance.estimator.canned.linear import LinearClassifier, LinearEstimator, LinearRegressor

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
]
