"""Compares the canned estimators with numbers recorded from tf.estimator itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from appliance import estimator
from tests.golden.scenarios import SCENARIOS, run

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "estimators.json").read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_canned_estimator_does_what_tf_estimator_does(name):
    """Losses by step, metrics, predictions, checkpoint variables and signatures are tf.estimator's."""
    golden, here = GOLDEN[name], run(estimator, name)
    assert here["variables"] == golden["variables"]
    assert here.get("signatures") == golden.get("signatures")
    np.testing.assert_allclose(here["losses"], golden["losses"], rtol=1e-5, atol=1e-6)
    assert here["metrics"].keys() == golden["metrics"].keys()
    for key, value in golden["metrics"].items():
        assert here["metrics"][key] == pytest.approx(value, rel=1e-5, abs=1e-6), key
    assert here["predictions"].keys() == golden["predictions"].keys()
    for key, value in golden["predictions"].items():
        if isinstance(np.asarray(value).flat[0], np.str_):
            assert here["predictions"][key] == value, key
        else:
            np.testing.assert_allclose(here["predictions"][key], value, rtol=1e-5, atol=1e-5, err_msg=key)
