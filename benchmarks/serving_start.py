"""How long the model server takes from its start to its first answer, beside a bare `import tensorflow`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serving_contenders import OURS, free_port
from benchmarks.table import print_table


def measured(base_path: Path, rounds: int, wait: Callable[..., None]) -> dict[str, list[float]]:
    """Return seconds, one a round, of `import tensorflow` and of our start; in turns."""
    seconds: dict[str, list[float]] = {"import tensorflow": [], "first answer": []}
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
        seconds["import tensorflow"].append(time.perf_counter() - started)
        rest_port, grpc_port = free_port(), free_port()
        started = time.perf_counter()
        process: Any = subprocess.Popen(
            OURS.command(base_path, rest_port, grpc_port), stderr=subprocess.DEVNULL
        )
        try:
            wait(OURS, process, rest_port)
            seconds["first answer"].append(time.perf_counter() - started)
        finally:
            process.terminate()
            process.wait()
    return seconds


def show(seconds: dict[str, list[float]]) -> None:
    """Print both, and the median of what the server adds."""
    added = [b - a for a, b in zip(*seconds.values(), strict=True)]
    rows = [(name, f"{statistics.median(values):.2f}") for name, values in seconds.items()]
    print_table("Start", ("", "seconds"), [*rows, ("added to the import", f"{statistics.median(added):.2f}")])
