"""Whether memory stays flat over a job that streams far more than fits into it, from CSV and from TFRecords.

    python -m benchmarks.streams [--gigabytes 0.5] [--file-megabytes 32] [--limit 5]

One file is written and listed as often as it takes, so that a stream of any length needs little disk. A
classifier is trained on the whole of it, shuffled, each stream in a process of its own. Resident memory after
the last step may be at most `--limit` percent above that after a tenth of the steps. Exits with 1 when it is
more, or when an example got lost.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil

from benchmarks.table import print_table

BATCH = 512
NUMBERS = [f"x{i}" for i in range(16)]
WORDS = [f"word {i}" for i in range(1000)]
SHARES = (0.1, 0.5, 1.0)
READINGS = 100


class Reading(NamedTuple):
    """The state of a training: the global step, seconds of the clock, resident memory in MiB."""

    step: int
    seconds: float
    mebibytes: float


class Run(NamedTuple):
    """What came of one stream.

    Fields:
        wanted: the steps that its batches come to.
        steps: those that were made.
        readings: about a hundred, in order.
    """

    wanted: int
    steps: int
    readings: list[Reading]


def examples() -> Iterator[tuple[list[float], str, int]]:
    """Yield numbers, word and label of one example after another."""
    source = random.Random(0)
    while True:
        numbers = [source.gauss(0.0, 1.0) for _ in NUMBERS]
        yield numbers, source.choice(WORDS), int(numbers[0] + numbers[1] > 0)


def write_csv(path: str, size: int) -> int:
    """Write a file of about `size` bytes; return how many examples it holds."""
    lines = (
        ",".join([*(f"{number:.6f}" for number in numbers), word, str(label)]).encode() + b"\n"
        for numbers, word, label in examples()
    )
    with open(path, "wb") as file:
        file.write(",".join([*NUMBERS, "word", "label"]).encode() + b"\n")
        return fill(file.write, lines, size)


def write_tfrecords(path: str, size: int) -> int:
    """Write a file of about `size` bytes; return how many examples it holds."""
    import tensorflow as tf

    def serialized(numbers: list[float], word: str, label: int) -> bytes:
        example = tf.train.Example()
        for name, number in zip(NUMBERS, numbers, strict=True):
            example.features.feature[name].float_list.value.append(number)
        example.features.feature["word"].bytes_list.value.append(word.encode())
        example.features.feature["label"].int64_list.value.append(label)
        return bytes(example.SerializeToString())

    with tf.io.TFRecordWriter(path) as writer:
        return fill(writer.write, (serialized(*example) for example in examples()), size)


def fill(write: Callable[[bytes], Any], records: Iterator[bytes], size: int) -> int:
    """Write records until they come to `size` bytes; return how many."""
    count = 0
    while size > 0:
        record = next(records)
        write(record)
        size -= len(record)
        count += 1
    return count


def csv_input(files: list[str], columns: list[Any]) -> Any:
    """Return the input_fn over CSV files."""
    from appliance import estimator

    return estimator.inputs.csv_input_fn(files, "label", batch_size=BATCH, shuffle=True)


def tfrecord_input(files: list[str], columns: list[Any]) -> Any:
    """Return the input_fn over TFRecord files."""
    from appliance import estimator

    spec = estimator.classifier_parse_example_spec(columns, "label")
    return estimator.inputs.tfrecord_input_fn(files, spec, "label", batch_size=BATCH, shuffle=True)


STREAMS: dict[str, tuple[Callable[[str, int], int], Callable[[list[str], list[Any]], Any]]] = {
    "CSV": (write_csv, csv_input),
    "TFRecord": (write_tfrecords, tfrecord_input),
}


def train(kind: str, total: int, size: int) -> Run:
    """Train on a stream of `total` bytes made of a file of `size` bytes."""
    import tensorflow as tf

    from appliance import estimator

    fc = tf.feature_column
    word = fc.categorical_column_with_hash_bucket("word", 2 * len(WORDS))
    columns = [*map(fc.numeric_column, NUMBERS), fc.embedding_column(word, 8)]
    write, input_of = STREAMS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "examples")
        count = write(path, size)
        files = [path] * max(1, round(total / os.path.getsize(path)))
        wanted = -(-count * len(files) // BATCH)
        readings: list[Reading] = []

        def note(values: dict[str, Any]) -> str:
            [step] = values.values()
            readings.append(Reading(int(step), time.monotonic(), psutil.Process().memory_info().rss / 2**20))
            return f"step {step}"

        hook = estimator.LoggingTensorHook(
            ["global_step/Read/ReadVariableOp:0"],
            every_n_iter=max(1, wanted // READINGS),
            at_end=True,
            formatter=note,
        )
        model = estimator.DNNClassifier([64, 32], columns, model_dir=os.path.join(folder, "model"))
        model.train(input_of(files, columns), hooks=[hook])
        return Run(wanted, int(model.get_variable_value("global_step")), readings)


def show(kind: str, total: int, run: Run) -> float:
    """Print what a run did; return by how much memory grew, as a share."""
    first, rows = run.readings[0], []
    reached = [next(r for r in run.readings if r.step >= share * run.steps) for share in SHARES]
    for share, reading in zip(SHARES, reached, strict=True):
        rate = (reading.step - first.step) / (reading.seconds - first.seconds)
        rows.append(
            (
                f"{share:.0%}",
                f"{reading.step:,}",
                f"{rate:,.0f}",
                f"{rate * total / run.wanted / 1e6:,.1f}",
                f"{reading.mebibytes:,.0f}",
                f"{reading.mebibytes / reached[0].mebibytes - 1:+.1%}",
            )
        )
    columns = ("of the stream", "step", "steps/s", "MB/s", "resident MiB", "growth")
    print_table(f"{kind}: {total / 1e9:g} GB, {run.steps:,} steps at batch {BATCH}", columns, rows)
    return reached[-1].mebibytes / reached[0].mebibytes - 1


def main() -> None:
    """Train on each stream and print what memory did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gigabytes", type=float, default=0.5, help="the length of each stream (default 0.5)"
    )
    parser.add_argument("--file-megabytes", type=float, default=32.0, help="the length of its file")
    parser.add_argument("--limit", type=float, default=5.0, help="growth that is allowed, in percent")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    total, failed = round(options.gigabytes * 1e9), False
    for kind in STREAMS:
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            run = process.submit(train, kind, total, round(options.file_megabytes * 1e6)).result()
        growth = show(kind, total, run)
        failed |= growth > options.limit / 100
        if run.steps != run.wanted:
            print(f"{kind}: {run.steps} steps were made, where the stream has batches for {run.wanted}.")
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
