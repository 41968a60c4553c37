"""The canned models as scikit-learn estimators: fit, predict, score, in pipelines and searches.

Importing this module needs the package scikit-learn; nothing else in `appliance.estimator` imports it.
"""

from __future__ import annotations

try:
    import sklearn
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "appliance.estimator.sklearn needs scikit-learn: pip install 'estimator-appliance[sklearn]'.",
        name=error.name,
    ) from error

from appliance.estimator.sklearn.dnn import DNNClassifier, DNNRegressor
from appliance.estimator.sklearn.linear import LinearClassifier, LinearRegressor

__all__ = ["DNNClassifier", "DNNRegressor", "LinearClassifier", "LinearRegressor"]

del sklearn
