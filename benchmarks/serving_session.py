"""The model without any server: how often a Session computes it. No server can be faster.

    python -m benchmarks.serving_session MODEL_PATH

Takes a line `ROWS SECONDS` for each measurement, and answers it with a line of JSON, like
`benchmarks.serving_load`. The call is `Session.make_callable`, as in the bare loop called `plain`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil


class BareSession:
    """A process of this module, as one of those that are measured."""

    name = "session"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, rows: int, seconds: float) -> dict[str, float]:
        """Return the figures of calls with so many rows, one after another."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(rows, seconds, file=self._process.stdin, flush=True)
        figures: dict[str, float] = json.loads(self._process.stdout.readline())
        return figures

    def cpu_seconds(self) -> float:
        """Return what it has used so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def bare_session(model_path: Path) -> Iterator[BareSession]:
    """Run it until the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.serving_session", str(model_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        session = BareSession(process)
        session.measure(1, 0.0)  # It has started when it answers.
        yield session
    finally:
        process.kill()
        process.wait()


def figures_of(call: Any, x: np.ndarray, seconds: float) -> dict[str, float]:
    """Call until the time is over."""
    latencies: list[float] = []
    started = before = time.perf_counter()
    while not latencies or before < started + seconds:
        call(x)
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    latencies.sort()
    return {
        "requests_per_second": len(latencies) / (before - started),
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] * 1e3,
        "requests": len(latencies),
    }


def main() -> None:
    """Answer the lines of the standard input."""
    from benchmarks.serving_bare import plain
    from benchmarks.serving_contenders import COLUMNS

    call = plain(sys.argv[1])
    for line in sys.stdin:
        rows, seconds = line.split()
        x = np.random.default_rng(0).normal(size=(int(rows), COLUMNS)).astype(np.float32)
        before = figures_of(call, x, float(seconds) / 4)
        figures = figures_of(call, x, float(seconds))
        figures["requests"] += before["requests"]
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
