"""scikit-learn's own checks of estimators."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from appliance.estimator.sklearn import DNNClassifier, DNNRegressor, LinearClassifier, LinearRegressor


@parametrize_with_checks([DNNClassifier(), DNNRegressor(), LinearClassifier(), LinearRegressor()])
def test_scikit_learn_finds_an_estimator_of_its_own(estimator, check, monkeypatch):
    # Without it the check of arrays of other kinds is left out.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)
