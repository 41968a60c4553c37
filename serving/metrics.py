"""Counts and latencies of requests, under TensorFlow Serving's names and in Prometheus' text format.

Written and read by one event loop, so nothing is locked. Several processes' figures are added up by their
snapshots.

References: TensorFlow Serving, servables/tensorflow/util.cc and util/prometheus_exporter.cc.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
REST, GRPC = "REST", "GRPC"
BOUNDS = tuple(10 * 1.8**power for power in range(33))
"""Upper bounds of the latency buckets, in microseconds."""
MOST_MODELS = 1000
"""Model names are chosen by clients: what comes after so many is counted as OTHER."""
OTHER = "(other)"

Snapshot = Mapping[str, Any]
"""Plain values: `counts`, a list of [labels, number]; `latencies`, one of [labels, bucket numbers, sum]."""


class Metrics:
    """The figures of one process."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._latencies: dict[tuple[str, str, str], _Histogram] = {}
        self._models: set[str] = set()

    def record(self, model: str, status: str) -> None:
        """Count a request: `status` is the name of its code, as in `NOT_FOUND`."""
        key = self._counted_as(model), status
        self._counts[key] = self._counts.get(key, 0) + 1

    def record_latency(self, model: str, api: str, entrypoint: str, seconds: float) -> None:
        """Note how long a request took. `api`: `predict` in REST, `Predict` in gRPC."""
        key = self._counted_as(model), api, entrypoint
        histogram = self._latencies.get(key)
        if histogram is None:
            histogram = self._latencies[key] = _Histogram()
        histogram.add(seconds * 1e6)

    def snapshot(self) -> Snapshot:
        """Return everything as plain values."""
        return {
            "counts": [[list(key), number] for key, number in self._counts.items()],
            "latencies": [[list(key), found.buckets, found.total] for key, found in self._latencies.items()],
        }

    def _counted_as(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(model)
        return model


class _Histogram:
    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.buckets[bisect_left(BOUNDS, value)] += 1
        self.total += value


def added(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return these figures added up."""
    counts: dict[tuple[str, ...], int] = {}
    latencies: dict[tuple[str, ...], tuple[list[int], float]] = {}
    for snapshot in snapshots:
        for labels, number in snapshot["counts"]:
            counts[tuple(labels)] = counts.get(tuple(labels), 0) + number
        for labels, buckets, total in snapshot["latencies"]:
            before, sum_before = latencies.get(tuple(labels), ([0] * len(buckets), 0.0))
            together = [a + b for a, b in zip(before, buckets, strict=True)]
            latencies[tuple(labels)] = together, sum_before + total
    return {
        "counts": [[list(key), number] for key, number in counts.items()],
        "latencies": [[list(key), *figures] for key, figures in latencies.items()],
    }


def page(snapshot: Snapshot) -> str:
    """Return the Prometheus page of these figures."""
    lines = ["# TYPE :tensorflow:serving:request_count counter"]
    for labels, number in sorted(snapshot["counts"]):
        shown = _labels(("model_name", "status"), labels)
        lines.append(f":tensorflow:serving:request_count{{{shown}}} {number}")
    lines.append("# TYPE :tensorflow:serving:request_latency histogram")
    for labels, buckets, total in sorted(snapshot["latencies"]):
        lines += _histogram(_labels(("model_name", "API", "entrypoint"), labels), buckets, total)
    return "\n".join(lines) + "\n"


def _histogram(labels: str, buckets: Sequence[int], total: float) -> list[str]:
    name = ":tensorflow:serving:request_latency"
    lines = []
    below = 0
    for bound, number in zip([*map(_number, BOUNDS), "+Inf"], buckets, strict=True):
        below += number
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}')
    return [*lines, f"{name}_sum{{{labels}}} {_number(total)}", f"{name}_count{{{labels}}} {below}"]


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.15g}"
