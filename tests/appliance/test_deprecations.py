"""TensorFlow advises against feature columns on every use; here they are used on purpose."""

import logging

import pytest
import tensorflow as tf
from tensorflow.python.util import deprecation

from appliance.estimator import deprecations


def test_advice_against_feature_columns_is_dropped_and_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    deprecations.install()  # Again: the filter is there already, from the import.
    filters = logging.getLogger("tensorflow").filters
    assert len([f for f in filters if isinstance(f, deprecations.FeatureColumnAdvice)]) == 1
    # TensorFlow gives each advice once a process.
    monkeypatch.setattr(deprecation, "_PRINTED_WARNING", {})

    @deprecation.deprecated(None, "Use another function.")
    def old() -> None:
        """Do nothing."""

    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        tf.feature_column.numeric_column("age")
        old()
        tf.get_logger().warning("A feature_column is missing.")
    assert ["another function" in caplog.messages[0], *caplog.messages[1:]] == [
        True,
        "A feature_column is missing.",
    ]
