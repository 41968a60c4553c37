"""input_fns over TFRecord files of `tf.train.Example`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.inputs.files import Files, checked_reading, matching_files, record_batches
from appliance.estimator.inputs.frames import label_names, split_labels


def tfrecord_input_fn(
    files: Files,
    feature_spec: Mapping[str, Any],
    label: str | Sequence[str] | None = None,
    *,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    shuffle_buffer_rows: int = 10_000,
    num_parallel_reads: int = 4,
    compression: str | None = None,
) -> Callable[..., Any]:
    """Return an `input_fn` over TFRecord files of serialized `tf.train.Example`s.

    Args:
        files: paths or patterns.
        feature_spec: what to parse, as `tf.feature_column.make_parse_example_spec` or
            `classifier_parse_example_spec` returns it.
        label: the feature that is the label; several names for a dict of labels; None for none.
        batch_size, num_epochs, shuffle: as for `numpy_input_fn`.
        shuffle_buffer_rows: among how many examples the next one is chosen when shuffling; that many are in
            memory.
        num_parallel_reads: how many files are read at the same time.
        compression: `GZIP`, `ZLIB` or None.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: a label is not in the spec; or as for `numpy_input_fn`.
    """
    reading = checked_reading(batch_size, num_epochs, shuffle, shuffle_buffer_rows, num_parallel_reads)
    paths = matching_files(files)
    unknown = sorted(set(label_names(label)) - feature_spec.keys())
    if unknown:
        raise ValueError(f"The labels {unknown} are not in feature_spec, which has {sorted(feature_spec)}.")

    def parse(records: Any) -> Any:
        return split_labels(tf.io.parse_example(records, dict(feature_spec)), label)

    def input_fn(input_context: Any = None) -> Any:
        return record_batches(
            paths,
            lambda path: tf.data.TFRecordDataset(path, compression_type=compression),
            parse,
            reading,
            input_context,
        )

    return input_fn
