"""How long the model server takes from its start to its first answer, beside a bare `import tensorflow`.

In wall time, which is what one waits for, and in CPU time, which a busy machine distorts less.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.serving_contenders import OURS, free_port
from benchmarks.table import print_table

IMPORT, ANSWER = "import tensorflow", "first answer"


def measured(base_path: Path, rounds: int, wait: Callable[..., None]) -> dict[str, list[float]]:
    """Return seconds, one a round, of `import tensorflow` and of our start; in turns."""
    seconds: dict[str, list[float]] = {
        name: [] for name in (IMPORT, ANSWER, f"{IMPORT}, CPU", f"{ANSWER}, CPU")
    }
    for _ in range(rounds):
        started, used = time.perf_counter(), children_cpu()
        subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, stderr=subprocess.DEVNULL)
        seconds[IMPORT].append(time.perf_counter() - started)
        seconds[f"{IMPORT}, CPU"].append(children_cpu() - used)
        rest_port, grpc_port = free_port(), free_port()
        started = time.perf_counter()
        process: Any = subprocess.Popen(
            OURS.command(base_path, rest_port, grpc_port), stderr=subprocess.DEVNULL
        )
        try:
            wait(OURS, process, rest_port)
            seconds[ANSWER].append(time.perf_counter() - started)
            times = psutil.Process(process.pid).cpu_times()
            seconds[f"{ANSWER}, CPU"].append(times.user + times.system)
        finally:
            process.terminate()
            process.wait()
    return seconds


def children_cpu() -> float:
    """Return the CPU seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(seconds: dict[str, list[float]]) -> None:
    """Print all, and the median of what the server adds to the import."""
    rows = []
    for kind in ("", ", CPU"):
        imported, answered = seconds[IMPORT + kind], seconds[ANSWER + kind]
        added = [b - a for a, b in zip(imported, answered, strict=True)]
        named = ((IMPORT, imported), (ANSWER, answered), ("added to the import", added))
        rows += [(name + kind, f"{statistics.median(values):.2f}") for name, values in named]
    print_table("Start", ("", "seconds"), rows)
