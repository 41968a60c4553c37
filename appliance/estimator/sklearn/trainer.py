"""Training a canned model in memory: a graph of its own, fed with arrays, no files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import sparse

from appliance.estimator.executor import fitting
from appliance.estimator.model_fn import ModeKeys
from appliance.estimator.session_config import default_session_config
from appliance.estimator.sklearn.rows import Rows

FEATURE, WEIGHT = "x", "weight"
"""The names of the two features of the model: `[batch, features]`, and the weight of each example."""


class Trainer:
    """A model in a session, trained batch by batch.

    Args:
        model_fn: of a canned estimator with the feature `x` and the weight column `weight`.
        example: rows that tell the shapes and dtypes of all batches.
        seed: of the initial values and of dropout.
    """

    def __init__(self, model_fn: Any, example: Rows, seed: int) -> None:
        with tf.Graph().as_default() as graph:
            tf.compat.v1.set_random_seed(seed)
            tf.compat.v1.train.create_global_step()
            fed = [
                tf.compat.v1.placeholder(tf.float32, [None, example.features.shape[1]]),
                tf.compat.v1.placeholder(example.targets.dtype, [None, example.targets.shape[1]]),
                tf.compat.v1.placeholder(tf.float32, [None]),
            ]
            features, labels, weights = fed
            spec = model_fn({FEATURE: features, WEIGHT: weights}, labels, ModeKeys.TRAIN)
            self._variables = {each.op.name: each for each in tf.compat.v1.global_variables()}
            initialize = tf.compat.v1.global_variables_initializer()
            config = fitting(default_session_config(), graph, [spec.train_op, spec.loss])
            self._session = tf.compat.v1.Session(graph=graph, config=config)
        self._session.run(initialize)
        self._step = self._session.make_callable([spec.loss, spec.train_op], feed_list=fed)

    def step(self, rows: Rows) -> float:
        """Train with one batch and return its loss, as it was before."""
        features = rows.features.toarray() if sparse.issparse(rows.features) else rows.features
        return float(self._step(features, rows.targets, rows.weights.astype(np.float32))[0])

    def values(self) -> dict[str, np.ndarray]:
        """Return all variables by their names in a checkpoint."""
        values: dict[str, np.ndarray] = self._session.run(self._variables)
        return values

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Go on from `values`, as `values()` returned them.

        The learning rate stays as it is, and of the optimizer's variables those count that fit it.

        Raises:
            ValueError: variables of the model are missing or have another shape.
        """
        feeds = {}
        for name, variable in self._variables.items():
            fits = name in values and variable.shape == np.shape(values[name])
            if name.startswith("training/"):
                if not fits or name.endswith("/learning_rate"):
                    continue
            elif not fits:
                raise ValueError(
                    f"The model trained so far has no variable {name} of shape {tuple(variable.shape)}. "
                    "Parameters that change the model cannot be set between calls of partial_fit: call fit."
                )
            feeds[variable.initializer.inputs[1]] = values[name]
        by_value = {each.initializer.inputs[1]: each.initializer for each in self._variables.values()}
        self._session.run([by_value[value] for value in feeds], feeds)

    def save(self, model_dir: str) -> None:
        """Write a checkpoint as the canned estimators read it."""
        os.makedirs(model_dir, exist_ok=True)
        with self._session.graph.as_default():
            step = self._session.run(self._variables[tf.compat.v1.GraphKeys.GLOBAL_STEP])
            saver = tf.compat.v1.train.Saver(sharded=True, save_relative_paths=True)
            path = os.path.join(model_dir, "model.ckpt")
            saver.save(self._session, path, global_step=int(step), write_meta_graph=False)

    def close(self) -> None:
        """Let go of the session."""
        self._session.close()
