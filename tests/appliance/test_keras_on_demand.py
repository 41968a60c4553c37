"""TensorFlow without Keras until it is used, each in a process of its own."""

import subprocess
import sys

import pytest


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("package", ["appliance.estimator", "serving.servable"])
def test_keras_is_not_imported_and_works_once_it_is_used(package: str) -> None:
    program = f"""
import {package}, sys
import tensorflow as tf
assert "keras" not in sys.modules and "pandas" not in sys.modules
from tensorflow.keras.layers import Dense
import keras
assert tf.keras.layers.Dense is keras.layers.Dense is Dense
print(tf.keras.optimizers.Adam(0.5).learning_rate.numpy(), keras.ops.add(1.0, 2.0).numpy())
"""
    assert run(program).split() == ["0.5", "3.0"]


def test_who_imports_keras_first_gets_all_of_it() -> None:
    program = """
import serving, keras, tensorflow as tf
assert keras.backend.backend() == "tensorflow" and tf.keras.layers.Dense is keras.layers.Dense
print(keras.ops.add(1.0, 2.0).numpy())
"""
    assert run(program).split() == ["3.0"]
