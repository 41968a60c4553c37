"""Predictions of models that ignore their features."""

from __future__ import annotations

import tensorflow as tf

from appliance import estimator


def test_predictions_end_with_the_data_even_when_the_model_ignores_it() -> None:
    """The batch size is known without the features, so nothing else would ask for the next batch."""
    model = estimator.BaselineRegressor()

    def input_fn():
        return tf.data.Dataset.from_tensors(({"x": [[1.0], [2.0]]}, [[1.0], [2.0]])).repeat(3)

    model.train(input_fn, steps=1)
    assert len(list(model.predict(input_fn))) == 6
