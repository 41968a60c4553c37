"""Columns of data frames as arrays: pandas, polars, Arrow, and whatever exports the Arrow C stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from appliance.estimator.inputs.rows import checked_array


def column_names(data: Any) -> list[str]:
    """Return the names of the columns of a table, as `as_table` returned it."""
    return list(data.column_names) if hasattr(data, "column_names") else [str(name) for name in data.columns]


def as_table(data: Any) -> Any:
    """Return `data`, or an Arrow table of it when it is neither pandas, polars nor Arrow.

    Raises:
        TypeError: it is no data frame.
    """
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = data.collect()  # A lazy frame of polars.
    known = hasattr(data, "iloc") or hasattr(data, "get_column") or hasattr(data, "column_names")
    if known:
        return data
    if hasattr(data, "__arrow_c_stream__"):
        import pyarrow

        return pyarrow.table(data)
    raise TypeError(
        f"data must be a pandas or polars DataFrame, an Arrow table, or export an Arrow stream "
        f"(__arrow_c_stream__). Given: {type(data).__module__}.{type(data).__name__}"
    )


def column_array(data: Any, name: str) -> np.ndarray:
    """Return one column as an array of a dtype that tensors have, without a copy where that can be done.

    Missing numbers of a float column are NaN; fixed-size lists become a second dimension.

    Raises:
        ValueError: other values are missing, or there is no such dtype.
    """
    if hasattr(data, "column_names"):
        return arrow_array(name, data.column(name))
    if hasattr(data, "get_column"):
        return _polars_array(name, data.get_column(name))
    return _pandas_array(name, data[name])


def arrow_array(name: str, column: Any) -> np.ndarray:
    """Return an Arrow array or chunked array as an array; see `column_array`."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    _refuse_missing(name, column.null_count, pa.types.is_floating(kind))
    if pa.types.is_fixed_size_list(kind):
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        values = column.flatten()
        _refuse_missing(name, values.null_count, pa.types.is_floating(kind.value_type))
        return checked_array(_described(name), values.to_numpy(False).reshape(len(column), kind.list_size))
    if hasattr(column, "chunks"):
        return _plain(name, column.to_numpy())
    return _plain(name, column.to_numpy(zero_copy_only=False))


def _polars_array(name: str, series: Any) -> np.ndarray:
    _refuse_missing(name, series.null_count(), series.dtype.is_float())
    return _plain(name, series.to_numpy())


def _pandas_array(name: str, series: Any) -> np.ndarray:
    kind = getattr(series.dtype, "kind", "O")
    _refuse_missing(name, int(series.isna().sum()), kind == "f")
    return _plain(
        name, series.to_numpy(np.dtype(series.dtype.name.lower())) if kind == "f" else series.to_numpy()
    )


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array with a dtype of its own, where it holds numbers, or rows of numbers, as objects."""
    if array.dtype == object and len(array) and not isinstance(array[0], str | bytes):
        try:
            array = np.asarray([np.asarray(entry) for entry in array])
        except ValueError as error:
            raise ValueError(
                f"{_described(name)} has rows of different lengths. Pad them to one, or leave the column out."
            ) from error
    return checked_array(_described(name), array)


def _refuse_missing(name: str, count: int, floating: bool) -> None:
    if count and not floating:
        raise ValueError(
            f"{_described(name)} has {count} missing values. Fill them in, drop those rows, or make it a "
            "column of floats, where they are NaN."
        )


def _described(name: str) -> str:
    return f"Column {name!r}"


def chosen(names: Sequence[str], labels: Sequence[str], features: Sequence[str] | None) -> list[str]:
    """Return the names of the features: those given, or all columns that are no labels.

    Raises:
        ValueError: a name is not among `names`, or a label is among the features.
    """
    wanted = [name for name in names if name not in labels] if features is None else list(features)
    unknown = sorted({*wanted, *labels} - set(names))
    if unknown:
        raise ValueError(f"There are no columns {unknown}. The columns are {list(names)}.")
    both = sorted(set(wanted) & set(labels))
    if both:
        raise ValueError(f"{both} cannot be both feature and label.")
    if not wanted:
        raise ValueError(f"No column is left for the features: {list(names)} are all labels.")
    return wanted
