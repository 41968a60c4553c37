"""Whether memory stays flat: alternating train and evaluate calls of a small model, in one process.

    python -m benchmarks.memory [--calls 300] [--warm-up 30] [--limit 5]

Each call builds its own graph and session. Resident memory after the last call may be at most `--limit`
percent above that after the warm-up. Exits with 1 when it is more.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from benchmarks.table import print_table


def resident_mib() -> float:
    """Return the resident memory of this process, in MiB."""
    return psutil.Process().memory_info().rss / 2**20


def alternate(calls: int) -> Iterator[int]:
    """Train and evaluate a small network in turns; yield the number of calls made, after each."""
    import tensorflow as tf

    from appliance import estimator

    rng = np.random.RandomState(0)
    x = rng.normal(size=(256, 4)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(64)

    with tempfile.TemporaryDirectory() as model_dir:
        columns = [tf.feature_column.numeric_column("x", shape=(4,))]
        model = estimator.DNNClassifier([8, 4], columns, model_dir=model_dir)
        for call in range(1, calls + 1):
            if call % 2:
                model.train(input_fn, steps=4)
            else:
                model.evaluate(input_fn)
            yield call


def main() -> None:
    """Run the calls and print what memory did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=30, help="calls before the first reading")
    parser.add_argument("--limit", type=float, default=5.0, help="growth that is allowed, in percent")
    options = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    started, first, last, rows = time.monotonic(), 0.0, 0.0, []
    for call in alternate(options.calls):
        if call == options.warm_up:
            first = resident_mib()
        if call >= options.warm_up and (call % options.warm_up == 0 or call == options.calls):
            last = resident_mib()
            rows.append((str(call), f"{last:,.0f}", f"{100 * (last / first - 1):+.1f} %"))
    print_table(
        f"Resident memory, {options.calls} calls in {time.monotonic() - started:.0f} s",
        ("after call", "MiB", "growth"),
        rows,
    )
    sys.exit(last > first * (1 + options.limit / 100))


if __name__ == "__main__":
    main()
