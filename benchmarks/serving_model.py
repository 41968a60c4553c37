"""Writes the SavedModel that the serving benchmark serves: `python -m benchmarks.serving_model PATH`.

20 floats in, two hidden layers of 64 and 32, one float out.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.serving_contenders import COLUMNS, HIDDEN


def save(path: str) -> None:
    """Save it with one predict signature, x to y."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, COLUMNS], name="x")
        layer = x
        sizes = (COLUMNS, *HIDDEN, 1)
        for number, (before, after) in enumerate(pairwise(sizes)):
            weights = v1.get_variable(f"weights_{number}", [before, after])
            layer = layer @ weights
            if after > 1:
                layer = tf.nn.relu(layer)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, path, {"x": x}, {"y": layer})


if __name__ == "__main__":
    save(sys.argv[1])
