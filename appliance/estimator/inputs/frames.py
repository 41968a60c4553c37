"""input_fns over data frames of any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from appliance.estimator.inputs.columns import as_table, chosen, column_array, column_names
from appliance.estimator.inputs.rows import checked_order, rows_input_fn


def dataframe_input_fn(
    data: Any,
    label: str | Sequence[str] | None = None,
    *,
    features: Sequence[str] | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    num_threads: int = 1,
) -> Callable[..., Any]:
    """Return an `input_fn` over a data frame in memory: its columns are the features.

    Args:
        data: a pandas or polars DataFrame (or LazyFrame), an Arrow table, or any object that exports the
            Arrow C stream, such as a relation of DuckDB. Numbers are not copied where the library allows it.
        label: the column of the labels; several names for a dict of labels; None for none.
        features: the columns to use; None: all others.
        batch_size, num_epochs, shuffle, num_threads: as for `numpy_input_fn`.

    Raises:
        TypeError: `data` is no data frame.
        ValueError: a column is not there, has missing values (other than floats) or values that a model
            cannot take; or as for `numpy_input_fn`.
    """
    order = checked_order(batch_size, num_epochs, shuffle, num_threads)
    table = as_table(data)
    labels = label_names(label)
    wanted = chosen(column_names(table), labels, features)
    arrays = {name: column_array(table, name) for name in [*wanted, *labels]}
    count = len(next(iter(arrays.values())))
    if count == 0:
        raise ValueError("The data frame has no rows.")
    return rows_input_fn(split_labels(arrays, label), count, order)


def label_names(label: str | Sequence[str] | None) -> list[str]:
    """Return the names of the columns that `label` asks for."""
    if label is None:
        return []
    return [label] if isinstance(label, str) else list(label)


def split_labels(columns: dict[str, Any], label: str | Sequence[str] | None) -> Any:
    """Return the features, or (features, labels), of columns by name."""
    if label is None:
        return columns
    names = label_names(label)
    features = {name: column for name, column in columns.items() if name not in names}
    labels = columns[label] if isinstance(label, str) else {name: columns[name] for name in names}
    return features, labels
