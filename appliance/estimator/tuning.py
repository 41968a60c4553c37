"""tf.data's tuner, switched off where it has nothing to tune.

The tuner is a thread that chooses what AUTOTUNE stands for, from how long everything takes. It wakes at
growing intervals, and a session that closes has to wait for the next time: half a second after some hundred
steps, more than a second after a thousand.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from appliance.estimator.columnar import ROW_WISE

_OPTIONS, _PREFETCH = "OptionsDataset", "PrefetchDataset"
_FIXED = ROW_WISE | {
    "BatchDatasetV2",
    "CacheDatasetV2",
    "ConcatenateDataset",
    "FilterDataset",
    "MapDataset",
    "PaddedBatchDatasetV2",
    _PREFETCH,
    "RangeDataset",
    "TensorDataset",
    "TensorSliceDataset",
    "ZipDataset",
}
"""Operations that have no number to choose, but for the size of a prefetch, and no Datasets within them."""


def untuned(dataset: Any) -> Any:
    """Return the Dataset with the tuner off, if it leaves nothing open and nobody has chosen.

    A graph must be being built.
    """
    if not _is_fixed(dataset):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _is_fixed(dataset: Any) -> bool:
    waiting = [tf.data.experimental.to_variant(dataset).op]
    while waiting:
        operation = waiting.pop()
        if operation.type not in _FIXED:
            return False
        if operation.type == _OPTIONS and _chooses(operation):
            return False
        if operation.type == _PREFETCH:
            size = tf.get_static_value(operation.inputs[1])
            if size is None or size == tf.data.AUTOTUNE:
                return False
        waiting.extend(tensor.op for tensor in operation.inputs if tensor.dtype == tf.variant)
    return True


def _chooses(operation: Any) -> bool:
    """Whether options say if there is to be a tuner. `Dataset.options` warns in graphs."""
    options = dataset_options_pb2.Options.FromString(operation.get_attr("serialized_options"))
    return options.autotune_options.WhichOneof("optional_enabled") is not None
