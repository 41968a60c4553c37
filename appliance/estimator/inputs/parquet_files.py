"""input_fns over Parquet files, read by Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from appliance.estimator.inputs.columns import arrow_array, chosen
from appliance.estimator.inputs.files import Files, Reading, checked_reading, matching_files
from appliance.estimator.inputs.frames import label_names, split_labels
from appliance.estimator.inputs.rows import shard_of

_CHUNK_ROWS = 8192


class Piece(NamedTuple):
    """A row group of a file: what is read as one stream."""

    path: str
    row_group: int


def parquet_input_fn(
    files: Files,
    label: str | Sequence[str] | None = None,
    *,
    features: Sequence[str] | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    shuffle_buffer_rows: int = 65_536,
    num_parallel_reads: int = 4,
) -> Callable[..., Any]:
    """Return an `input_fn` over Parquet files (needs pyarrow: `pip install estimator-appliance[inputs]`).

    Only the columns that are used are read, a few thousand rows at a time. To shuffle, row groups are read in
    random order, several at a time, and blocks of `shuffle_buffer_rows` of the rows so mixed are permuted.

    Args:
        files: paths or patterns.
        label: the column of the labels; several names for a dict of labels; None for none.
        features: the columns to use; None: all others.
        batch_size, num_epochs, shuffle: as for `numpy_input_fn`.
        shuffle_buffer_rows: how many rows are permuted at a time when shuffling; twice that many are in
            memory.
        num_parallel_reads: how many row groups are read at the same time.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: a column is not there or has no dtype that a model can take; or as for `numpy_input_fn`.
    """
    import pyarrow.parquet

    reading = checked_reading(batch_size, num_epochs, shuffle, shuffle_buffer_rows, num_parallel_reads)
    paths = matching_files(files)
    schema = pyarrow.parquet.read_schema(paths[0])
    labels = label_names(label)
    names = [*chosen(schema.names, labels, features), *labels]
    empty = schema.empty_table()
    signature = {name: _spec(name, empty.column(name)) for name in names}
    pieces = [
        Piece(path, group)
        for path in paths
        for group in range(pyarrow.parquet.read_metadata(path).num_row_groups)
    ]
    if not pieces:
        raise ValueError(f"The files have no rows: {paths}")

    def input_fn(input_context: Any = None) -> Any:
        chunks = _chunks(pieces, signature, reading, shard_of(input_context))
        rows = chunks.repeat(reading.order.num_epochs).rebatch(reading.order.batch_size)
        return rows.map(lambda columns: split_labels(columns, label)).prefetch(2)

    return input_fn


def _spec(name: str, column: Any) -> Any:
    if str(column.type).startswith(("list", "large_list")):
        raise ValueError(
            f"Column {name!r} has lists of any length. Make it a fixed-size list, or leave it out of the "
            "features."
        )
    array = arrow_array(name, column)
    strings = array.dtype == object
    return tf.TensorSpec([None, *array.shape[1:]], tf.string if strings else array.dtype)


def _chunks(
    pieces: Sequence[Piece], signature: dict[str, Any], reading: Reading, shard: tuple[int, int]
) -> Any:
    """Return a Dataset of one epoch, in chunks of many rows."""
    index, count = shard
    by_piece = len(pieces) >= count
    own = list(pieces)[index::count] if by_piece else list(pieces)

    def read(number: int) -> Iterator[dict[str, np.ndarray]]:
        rows = (0, 1) if by_piece else shard
        return read_piece(own[number], list(signature), rows)

    numbers = tf.data.Dataset.range(len(own))
    if reading.order.shuffle:
        numbers = numbers.shuffle(len(own))
    width = min(reading.parallel_reads, len(own))
    chunks = numbers.interleave(
        lambda number: tf.data.Dataset.from_generator(read, output_signature=signature, args=(number,)),
        cycle_length=width,
        num_parallel_calls=width,
    )
    if not reading.order.shuffle:
        return chunks
    # The functions of a Dataset have a graph of their own; the seed is that of the graph around it.
    _, seed = tf.compat.v1.get_seed(None)

    def permuted(columns: dict[str, Any]) -> dict[str, Any]:
        rows = tf.random.shuffle(tf.range(tf.shape(next(iter(columns.values())))[0]), seed=seed)
        return {name: tf.gather(column, rows) for name, column in columns.items()}

    return chunks.rebatch(reading.buffer_rows).map(permuted).prefetch(1)


def read_piece(piece: Piece, names: Sequence[str], rows: tuple[int, int]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the columns of a row group, a few thousand rows at a time.

    Args:
        piece: the row group.
        names: the columns.
        rows: (index, count): every `count`-th row, from `index` on.

    Raises:
        ValueError: a value is missing in a column that is not of floats.
    """
    import pyarrow.parquet

    index, count = rows
    start = 0
    with pyarrow.parquet.ParquetFile(piece.path) as file:
        for batch in file.iter_batches(_CHUNK_ROWS, row_groups=[piece.row_group], columns=list(names)):
            first = (index - start) % count
            yield {name: arrow_array(name, batch.column(name))[first::count] for name in names}
            start += batch.num_rows
