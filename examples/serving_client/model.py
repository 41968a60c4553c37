"""Writes x / 2 + 2 with the signatures of TensorFlow Serving's own test model, half_plus_two.

python -m examples.serving_client.model models/half_plus_two/1
"""

from __future__ import annotations

import sys

import tensorflow as tf

v1 = tf.compat.v1


def save(path: str) -> None:
    """Write the SavedModel."""
    with tf.Graph().as_default(), v1.Session() as session:
        half, two = v1.get_variable("a", initializer=0.5), v1.get_variable("b", initializer=2.0)
        serialized = v1.placeholder(tf.string, name="tf_example")
        parsed = v1.io.parse_example(serialized, {"x": v1.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(tf.multiply(half, x), two, name="y")
        session.run(v1.global_variables_initializer())
        info, signature = v1.saved_model.build_tensor_info, v1.saved_model.build_signature_def
        examples = {"inputs": info(serialized)}
        builder = v1.saved_model.Builder(path)
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "serving_default": signature({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict"),
                "regress_x_to_y": signature(examples, {"outputs": info(y)}, "tensorflow/serving/regress"),
                "classify_x_to_y": signature(examples, {"scores": info(y)}, "tensorflow/serving/classify"),
            },
        )
        builder.save()


if __name__ == "__main__":
    save(sys.argv[1])
