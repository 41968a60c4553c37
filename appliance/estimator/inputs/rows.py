"""Batches of rows of arrays in memory: row numbers are shuffled, then one gather a column makes a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Order(NamedTuple):
    """In which order, how often and in what portions rows are given.

    Fields:
        batch_size: rows a batch; the last batch may be smaller. Batches straddle the epochs.
        num_epochs: how often each row is given; None: endlessly.
        shuffle: whether each epoch is in an order of its own. The order is complete: any row can follow any.
        num_threads: how many batches are made at the same time.
    """

    batch_size: int
    num_epochs: int | None
    shuffle: bool
    num_threads: int


def checked_order(batch_size: int, num_epochs: int | None, shuffle: Any, num_threads: int = 1) -> Order:
    """Return the Order.

    Raises:
        ValueError: `shuffle` is not a bool, or a number is not positive.
    """
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it as True for "
            f"training); got {shuffle}"
        )
    numbers = {"batch_size": batch_size, "num_epochs": num_epochs, "num_threads": num_threads}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1. Given: {value}")
    return Order(batch_size, num_epochs, shuffle, num_threads)


def checked_array(name: str, value: Any) -> np.ndarray:
    """Return a column as an array of one of the dtypes that tensors have.

    Raises:
        ValueError: it is a scalar, or holds neither numbers nor truth values nor strings.
    """
    array = np.asarray(value)
    if array.ndim == 0:
        raise ValueError(f"{name} must have one entry a row. Given the single value {value!r}.")
    if array.dtype.kind == "O":
        odd = [entry for entry in array.flat if not isinstance(entry, str | bytes)]
        if odd:
            raise ValueError(
                f"{name} holds strings and also {odd[0]!r} of type {type(odd[0]).__name__}. Fill in what is "
                "missing, or convert the column to one type."
            )
    elif array.dtype.kind not in "biufcSU":
        raise ValueError(
            f"{name} has the dtype {array.dtype}, which a model cannot take. Convert it, for instance to "
            "a number of days with .astype('int64')."
        )
    return array


def checked_length(arrays: Mapping[str, np.ndarray]) -> int:
    """Return how many rows all of the arrays have.

    Raises:
        ValueError: they differ, or there are no rows.
    """
    lengths = {name: len(array) for name, array in arrays.items()}
    count = next(iter(lengths.values()))
    if any(length != count for length in lengths.values()):
        raise ValueError(
            "Length of tensors in x and y is mismatched. All elements in x and y must have the same length. "
            f"Given: {lengths}"
        )
    if count == 0:
        raise ValueError(f"There are no rows in {sorted(lengths)}.")
    return count


def rows_input_fn(structure: Any, count: int, order: Order) -> Callable[..., Any]:
    """Return an `input_fn` that gives a Dataset of batches of `structure`.

    Args:
        structure: arrays of `count` rows, in the nesting in which their batches are given.
        count: how many rows there are.
        order: see `Order`. With an `input_context` each pipeline has every n-th row.
    """

    def input_fn(input_context: Any = None) -> Any:
        columns = tf.nest.map_structure(tf.constant, structure)
        batches = _row_numbers(count, order, input_context).rebatch(order.batch_size)

        def gather(numbers: Any) -> Any:
            return tf.nest.map_structure(lambda column: tf.gather(column, numbers), columns)

        parallel = order.num_threads if order.num_threads > 1 else None
        return batches.map(gather, num_parallel_calls=parallel).prefetch(2)

    return input_fn


def _row_numbers(count: int, order: Order, input_context: Any) -> Any:
    """Return a Dataset of one tensor an epoch: the numbers of all rows."""
    first, step = shard_of(input_context)
    if step > count:
        raise ValueError(f"There are {count} rows for {step} workers: at least one has none.")
    dtype = tf.int32 if count < 2**31 else tf.int64
    # The function below has a graph of its own; the seed is that of the graph around it.
    _, seed = tf.compat.v1.get_seed(None)

    def epoch(_: Any) -> Any:
        rows = tf.range(tf.constant(first, dtype), count, step)
        return tf.random.shuffle(rows, seed=seed) if order.shuffle else rows

    epochs = tf.data.Dataset.range(order.num_epochs or tf.int64.max)
    # The order of the next epoch is ready when this one ends.
    return epochs.map(epoch).prefetch(1)


def shard_of(input_context: Any) -> tuple[int, int]:
    """Return (index, count) of the input pipelines that share the data; (0, 1) when there is one."""
    if input_context is None:
        return 0, 1
    return input_context.input_pipeline_id, input_context.num_input_pipelines
