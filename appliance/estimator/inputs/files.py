"""What the readers of files share: which files, whose share of them, in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from appliance.estimator.inputs.rows import Order, checked_order, shard_of

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Reading(NamedTuple):
    """How files are read.

    Fields:
        order: batch size, epochs, whether to shuffle.
        buffer_rows: among how many rows the next one is chosen when shuffling.
        parallel_reads: how many files are read at the same time.
    """

    order: Order
    buffer_rows: int
    parallel_reads: int


def checked_reading(
    batch_size: int, num_epochs: int | None, shuffle: Any, shuffle_buffer_rows: int, num_parallel_reads: int
) -> Reading:
    """Return the Reading.

    Raises:
        ValueError: `shuffle` is not a bool, or a number is not positive.
    """
    order = checked_order(batch_size, num_epochs, shuffle)
    for name, value in (
        ("shuffle_buffer_rows", shuffle_buffer_rows),
        ("num_parallel_reads", num_parallel_reads),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1. Given: {value}")
    return Reading(order, shuffle_buffer_rows, num_parallel_reads)


def matching_files(files: Files) -> list[str]:
    """Return the paths that paths and patterns (`part-*.csv`) stand for, each pattern's in order of name.

    Raises:
        FileNotFoundError: there is no file for one of them.
    """
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    found: list[str] = []
    for entry in given:
        matches = sorted(tf.io.gfile.glob(os.fspath(entry)))
        if not matches:
            raise FileNotFoundError(f"There is no file {os.fspath(entry)!r}. Check the path or the pattern.")
        found.extend(matches)
    if not found:
        raise FileNotFoundError("No files are given to read.")
    return found


def record_batches(
    files: Sequence[str],
    read: Callable[[Any], Any],
    parse: Callable[[Any], Any],
    reading: Reading,
    input_context: Any,
) -> Any:
    """Return a Dataset of batches of records.

    Files are read several at a time, a record from each in turn. Each of several workers has whole files, or,
    when there are fewer files than workers, every n-th record of each. Records stay one string each until
    they are in a batch, which is then parsed at once: that is many times faster than parsing rows.

    Args:
        files: paths.
        read: from a path to a Dataset of records, scalar strings.
        parse: from strings `[batch]` to what the batch holds.
        reading: see `Reading`.
        input_context: the `tf.distribute.InputContext` of this worker, or None.
    """
    index, count = shard_of(input_context)
    own = list(files)[index::count] if len(files) >= count else list(files)
    paths = tf.data.Dataset.from_tensor_slices(own)
    if reading.order.shuffle:
        paths = paths.shuffle(len(own))

    def share(path: Any) -> Any:
        return read(path) if len(files) >= count else read(path).shard(count, index)

    width = min(reading.parallel_reads, len(own))
    records = paths.interleave(share, cycle_length=width, num_parallel_calls=width)
    if reading.order.shuffle:
        records = records.shuffle(reading.buffer_rows)
    batches = records.repeat(reading.order.num_epochs).batch(reading.order.batch_size)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
