"""input_fns over numpy arrays and pandas DataFrames, with the arguments that tf.estimator's have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.estimator.inputs.rows import checked_array, checked_length, checked_order, rows_input_fn


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[..., Any]:
    """Return an `input_fn` over arrays in memory.

    It gives a `tf.data.Dataset` whose batches are gathered ahead of the model. The arrays are neither copied
    nor put into the graph, so that they may be of any size.

    Args:
        x: an array, or a dict of arrays, with one row an example.
        y: the labels: an array, or a dict of arrays under other names than the features'; None for none.
        batch_size: rows a batch; the last batch may be smaller, and batches straddle the epochs.
        num_epochs: how often each row is given; None: endlessly.
        shuffle: whether each epoch is in an order of its own; must be said. The seed is the graph's.
        queue_capacity: taken for the sake of older programs: the order of the rows is complete without it.
        num_threads: how many batches are made at the same time; their order does not depend on it.

    Raises:
        TypeError: `x` is neither a dict nor an array.
        ValueError: `shuffle` is not a bool, a dict is empty, a name is in `x` and in `y`, or lengths differ.

    Source: `tf.compat.v1.estimator.inputs.numpy_input_fn`.
    """
    order = checked_order(batch_size, num_epochs, shuffle, num_threads)
    features = _checked_features(x)
    labels = _checked_labels(y)
    if isinstance(features, dict) and isinstance(labels, dict):
        twice = sorted(features.keys() & labels.keys())
        if twice:
            raise ValueError(f"{len(twice)} duplicate keys are found in both x and y: {twice}")
    count = checked_length(_named("x", features) | ({} if labels is None else _named("y", labels)))
    return rows_input_fn(features if labels is None else (features, labels), count, order)


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[..., Any]:
    """Return an `input_fn` over a pandas DataFrame: its columns are the features, its index is not.

    Args:
        x: a DataFrame.
        y: the labels: a Series, or a DataFrame for a dict of labels, with the index of `x`; None for none.
        batch_size, num_epochs, shuffle, queue_capacity, num_threads: as for `numpy_input_fn`.
        target_column: a name that no column of `x` may have when `y` is a Series.

    Raises:
        TypeError: `x` is not a DataFrame.
        ValueError: the indices differ, a column of `x` has the name of a label or values that a model cannot
            take, or as for `numpy_input_fn`.

    Source: `tf.compat.v1.estimator.inputs.pandas_input_fn`.
    """
    checked_order(batch_size, num_epochs, shuffle, num_threads)
    if not (hasattr(x, "columns") and hasattr(x, "index")):
        raise TypeError(f"x must be a pandas DataFrame. Given: {type(x).__name__}")
    if y is not None and not x.index.equals(y.index):
        raise ValueError("Index for x and y are mismatched. Give both the same index, with .reset_index().")
    labels: Any = None
    if y is not None:
        if hasattr(y, "columns"):
            labels = {str(name): y[name].to_numpy() for name in y.columns}
        elif target_column in x.columns:
            raise ValueError(
                f"Cannot use name {target_column} for target column: DataFrame already has a column with "
                f"that name: {list(x.columns)}. Drop it, or choose another target_column."
            )
        else:
            labels = y.to_numpy()
    return numpy_input_fn(
        {str(name): x[name].to_numpy() for name in x.columns},
        labels,
        batch_size=batch_size,
        num_epochs=num_epochs,
        shuffle=shuffle,
        queue_capacity=queue_capacity,
        num_threads=num_threads,
    )


def _checked_features(x: Any) -> Any:
    if isinstance(x, Mapping):
        if not x:
            raise ValueError("x cannot be an empty dict")
        return {name: checked_array(f"Feature {name!r}", value) for name, value in x.items()}
    if not hasattr(x, "__array__"):
        raise TypeError(f"x must be a dict or array; got {type(x).__name__}")
    return checked_array("x", x)


def _checked_labels(y: Any) -> Any:
    if y is None:
        return None
    if isinstance(y, Mapping):
        if not y:
            raise ValueError("y cannot be empty dict, use None instead.")
        return {name: checked_array(f"Label {name!r}", value) for name, value in y.items()}
    return checked_array("y", y)


def _named(name: str, arrays: Any) -> dict[str, Any]:
    if isinstance(arrays, dict):
        return {f"{name}[{key!r}]": array for key, array in arrays.items()}
    return {name: arrays}
