"""Which predictions are yielded, and in which pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf


def chosen(predictions: Any, keys: Iterable[str] | str | None) -> Any:
    """Return the predictions under `keys`.

    Raises:
        ValueError: they are not a dict, or lack a key.
    """
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions. Leave it out.")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    unknown = [key for key in wanted if key not in predictions]
    if unknown:
        raise ValueError(
            f"Predictions have no {unknown}; expected some of {list(predictions)}, given: {wanted}"
        )
    return {key: value for key, value in predictions.items() if key in wanted}


def examples(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch.

    Raises:
        ValueError: the predictions have different numbers of rows.
    """
    if not isinstance(batch, dict):
        yield from batch
        return
    lengths = {key: np.shape(value)[0] for key, value in batch.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"Batch length of predictions should be same. Given: {lengths}. "
            "Set yield_single_examples=False to get whole batches."
        )
    for index in range(next(iter(lengths.values()), 0)):
        yield {key: value[index] for key, value in batch.items()}


def following(predictions: Any, features: Any) -> Any:
    """Return predictions that are not computed without taking the next features.

    A model may ignore its features and know the size of a batch without them, as a baseline does; its
    predictions would otherwise go on for ever.
    """
    tensors = [each for each in tf.nest.flatten(features, expand_composites=True) if tf.is_tensor(each)]
    with tf.control_dependencies(tensors):
        return tf.nest.map_structure(tf.identity, predictions, expand_composites=True)
