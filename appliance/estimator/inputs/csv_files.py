"""input_fns over CSV files."""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.inputs.columns import chosen
from appliance.estimator.inputs.files import Files, checked_reading, matching_files, record_batches
from appliance.estimator.inputs.frames import label_names, split_labels

_SAMPLE_ROWS = 1000
_DTYPES = (tf.int32, tf.int64, tf.float32, tf.float64, tf.string)


def csv_input_fn(
    files: Files,
    label: str | Sequence[str] | None = None,
    *,
    features: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    delimiter: str = ",",
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    shuffle_buffer_rows: int = 10_000,
    num_parallel_reads: int = 4,
) -> Callable[..., Any]:
    """Return an `input_fn` over CSV files, plain or gzipped (`*.gz`).

    Fields may be quoted; a quoted field may not hold a line break.

    Args:
        files: paths or patterns.
        label: the column of the labels; several names for a dict of labels; None for none.
        features: the columns to use; None: all others.
        column_names: the names of the columns, for files without a header.
        dtypes: column name to int32, int64, float32, float64 or string. The others have the first of int64,
            float32 and string that fits the first 1,000 rows.
        defaults: column name to the value for an empty field. In other columns an empty field is an error,
            but in those of strings it is an empty string.
        delimiter: what stands between two fields.
        batch_size, num_epochs, shuffle: as for `numpy_input_fn`.
        shuffle_buffer_rows: among how many rows the next one is chosen when shuffling; that many are in
            memory.
        num_parallel_reads: how many files are read at the same time.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: the headers differ, a column is not there, or a dtype is none of those; or as for
            `numpy_input_fn`.
        tf.errors.InvalidArgumentError: in training: a field is missing or not of its column's dtype.
    """
    reading = checked_reading(batch_size, num_epochs, shuffle, shuffle_buffer_rows, num_parallel_reads)
    paths = matching_files(files)
    names = list(column_names) if column_names else _header(paths, delimiter)
    labels = label_names(label)
    used = {*chosen(names, labels, features), *labels}
    positions = [i for i, name in enumerate(names) if name in used]
    kinds = _kinds(_sample(paths[0], delimiter, header=not column_names), names, positions, dtypes or {})
    record_defaults = [_default(names[i], kinds[names[i]], defaults or {}) for i in positions]

    def read(path: Any) -> Any:
        compression = "GZIP" if paths[0].endswith(".gz") else None
        return tf.data.TextLineDataset(path, compression_type=compression).skip(0 if column_names else 1)

    def parse(lines: Any) -> Any:
        fields = tf.io.decode_csv(lines, record_defaults, field_delim=delimiter, select_cols=positions)
        return split_labels({names[i]: field for i, field in zip(positions, fields, strict=True)}, label)

    def input_fn(input_context: Any = None) -> Any:
        return record_batches(paths, read, parse, reading, input_context)

    return input_fn


def _rows(path: str, delimiter: str) -> Any:
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(tf.io.gfile.GFile(path, "rb"))
        if path.endswith(".gz"):
            raw = stack.enter_context(gzip.open(raw))
        # Not io.TextIOWrapper: a GFile is not a complete file object.
        lines = (line.decode("utf-8-sig") for line in raw)
        yield from csv.reader(lines, delimiter=delimiter)


def _header(paths: Sequence[str], delimiter: str) -> list[str]:
    first: list[str] = []
    for path in paths:
        header = next(_rows(path, delimiter), None)
        if not header:
            raise ValueError(f"{path} is empty: it has no header.")
        if first and header != first:
            raise ValueError(
                f"The header of {path} is not that of {paths[0]}: {header} and {first}. Read them one by "
                "one, or give all the same columns."
            )
        first = header
    return first


def _sample(path: str, delimiter: str, header: bool) -> list[list[str]]:
    rows = itertools.islice(_rows(path, delimiter), int(header), _SAMPLE_ROWS + int(header))
    return list(rows)


def _kinds(
    sample: Sequence[Sequence[str]], names: Sequence[str], positions: Sequence[int], given: Mapping[str, Any]
) -> dict[str, Any]:
    kinds = {}
    for i in positions:
        name = names[i]
        kind = tf.as_dtype(given[name]) if name in given else _fitting([r[i] for r in sample if i < len(r)])
        if kind not in _DTYPES:
            raise ValueError(
                f"Column {name!r} cannot have the dtype {kind.name}; choose one of "
                f"{[dtype.name for dtype in _DTYPES]}."
            )
        kinds[name] = kind
    return kinds


def _fitting(fields: Sequence[str]) -> Any:
    fields = [field for field in fields if field]
    for kind, convert in ((tf.int64, int), (tf.float32, float)):
        if fields and all(_converts(field, convert) for field in fields):
            return kind
    return tf.string


def _converts(field: str, convert: Callable[[str], Any]) -> bool:
    try:
        convert(field)
    except ValueError:
        return False
    return "_" not in field


def _default(name: str, kind: Any, defaults: Mapping[str, Any]) -> Any:
    if name in defaults:
        return tf.constant([defaults[name]], kind).numpy()
    return [""] if kind == tf.string else tf.constant([], kind).numpy()
