"""Keras models on several devices: two virtual CPUs, in a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """For each model: what came of it on two devices, and on one with the doubled batch."""
    command = [sys.executable, "-m", "tests.appliance.mirrored_keras", str(tmp_path_factory.mktemp("models"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["functional", "subclassed"])
def test_two_replicas_train_and_evaluate_a_keras_model_as_one_does(results, name):
    """Weights, optimizer state, losses by step, metrics and predictions are equal, sums and means alike."""
    mirrored, single = results[name]
    assert mirrored["values"].keys() == single["values"].keys()
    for variable, value in single["values"].items():
        np.testing.assert_allclose(
            mirrored["values"][variable], value, rtol=1e-5, atol=1e-6, err_msg=variable
        )
    np.testing.assert_allclose(mirrored["losses"], single["losses"], rtol=1e-5)
    assert mirrored["metrics"] == pytest.approx(single["metrics"], rel=1e-5)
    for output, value in single["prediction"].items():
        assert mirrored["prediction"][output] == pytest.approx(value, rel=1e-5)


def test_layers_that_behave_by_mode_train_among_replicas(results):
    """The checkpoint is that of one device by its names; averages have moved, and are finite."""
    mirrored, single = results["by_mode"]
    assert mirrored["values"].keys() == single["values"].keys()
    assert mirrored["values"]["global_step"] == 6
    for name in ("batch_normalization/moving_mean", "batch_normalization/moving_variance"):
        np.testing.assert_allclose(mirrored["values"][name], single["values"][name], atol=0.5)
        assert np.abs(np.subtract(mirrored["values"][name], name.endswith("variance"))).min() > 1e-3
    assert np.isfinite(list(mirrored["metrics"].values())).all()
