"""The model card: what is known of a version, as one page of Markdown that people can read and keep."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32
"""The characters of a curve."""
STEPS = 10
"""How many steps a table of metrics by step has at most."""
KINDS = {"evaluation": "Evaluation by step", "train": "Training by step"}
"""The kinds of metrics that are told by step, and their headings."""


def render_card(lineage: Mapping[str, Any]) -> str:
    """Return the card of the version that `lineage` (of the API) tells of."""
    version = lineage["version"]
    parts = [
        f"# {_text(version['model'])}, version {version['version']}",
        _text(version["description"]),
        _table(["", ""], _facts(lineage)),
        *_section("Metrics", ["metric", "value"], _pairs(version["metrics"])),
        *_section("Curves", ["metric", "first", "last", "least", "greatest", "by step"], _curves(lineage)),
        *_steps(lineage["curves"]),
        *_section("Parameters", ["parameter", "value"], _pairs(version["params"])),
        *_signatures(version["signatures"]),
        *_gates(lineage["gate_reports"]),
        *_section("Approvals", ["label", "by", "at", "comment"], _approvals(lineage)),
        *_section("History", ["at", "label", "move", "by", "reason"], _moves(lineage)),
        *_section("Libraries", ["library", "version"], _pairs(version["libraries"])),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def sparkline(values: Sequence[float]) -> str:
    """Return a curve in at most `WIDTH` characters; a gap where there is no number."""
    if len(values) > WIDTH:
        values = [values[round(index * (len(values) - 1) / (WIDTH - 1))] for index in range(WIDTH)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    steps = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * steps)] if math.isfinite(value) else " " for value in values)


def curve_rows(curves: Mapping[str, Any]) -> list[tuple[str, float, float, float, float, str]]:
    """Return, for each curve, its name, first, last, least and greatest value, and its line.

    A nan is neither the least nor the greatest, unless there is nothing else.
    """
    rows = []
    for name, points in sorted(curves.items()):
        values = [float(value) for _, value in points]
        ranked = [value for value in values if not math.isnan(value)] or [math.nan]
        rows.append((name, values[0], values[-1], min(ranked), max(ranked), sparkline(values)))
    return rows


def step_rows(curves: Mapping[str, Any], kind: str) -> tuple[list[str], list[list[Any]]]:
    """Return the metrics of one kind (`train`, `evaluation`) by step, as the columns and rows of a table.

    Of more than `STEPS` steps evenly chosen ones, the first and the last among them. A metric that was not
    told at a step is None there.
    """
    of_kind = {
        name.partition("/")[2]: {step: float(value) for step, value in points}
        for name, points in sorted(curves.items())
        if name.startswith(f"{kind}/")
    }
    steps = sorted({step for curve in of_kind.values() for step in curve})
    if len(steps) > STEPS:
        steps = [steps[round(index * (len(steps) - 1) / (STEPS - 1))] for index in range(STEPS)]
    return ["step", *of_kind], [[step, *(curve.get(step) for curve in of_kind.values())] for step in steps]


def _facts(lineage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    version, job = lineage["version"], lineage["job"]
    facts: list[tuple[str, Any]] = [
        ("state", version["state"]),
        ("labels", ", ".join(version["labels"])),
        ("tags", ", ".join(f"{key}={value}" for key, value in version["tags"].items())),
        ("created", version["created_at"]),
        ("step", version["step"]),
        ("job", version["job"]),
        ("trained by", "" if job is None else f"{job['file']}:{job['function']}, {job['submitted_by']}"),
        ("source revision", version["source_revision"]),
        ("data fingerprint", version["data_fingerprint"]),
        ("files", f"{version['files']} ({version['size_bytes']:,} bytes) at {version['uri']}"),
        ("error", version["error"]),
    ]
    return ((name, _text(value)) for name, value in facts if value not in ("", None))


def _pairs(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((_text(name), _value(value)) for name, value in sorted(values.items()))


def _curves(lineage: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, first, last, low, high, line in curve_rows(lineage["curves"]):
        yield (
            _text(name),
            _value(first),
            _value(last),
            _value(low),
            _value(high),
            f"`{line}`" if line else "",
        )


def _steps(curves: Mapping[str, Any]) -> Iterator[str]:
    for kind, heading in KINDS.items():
        columns, rows = step_rows(curves, kind)
        shown = [["" if value is None else _value(value) for value in row] for row in rows]
        yield from _section(heading, [_text(name) for name in columns], shown)


def _signatures(signatures: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (_text(name), way, _text(alias), _text(tensor.get("dtype")), _value(tensor.get("shape")))
        for name, signature in sorted(signatures.items())
        for way in ("inputs", "outputs")
        for alias, tensor in sorted(signature.get(way, {}).items())
    ]
    return _section("Signatures", ["signature", "", "name", "dtype", "shape"], rows)


def _gates(reports: Mapping[str, Any]) -> Iterator[str]:
    for label, report in sorted(reports.items()):
        said = "passed" if report["passed"] else "**refused**"
        rows = [
            ("passed" if check["passed"] else "**failed**", _text(check["rule"]), _text(check["detail"]))
            for check in report["checks"]
        ]
        heading = f"Gate of {_text(label)}: {said}, {_text(report['at'])}"
        yield from _section(heading, ["", "rule", "what it found"], rows)


def _approvals(lineage: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for entry in lineage["approvals"]:
        yield tuple(_text(entry[name]) for name in ("label", "actor", "at", "comment"))


def _moves(lineage: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for move in lineage["moves"]:
        way = f"{move['action']}: {_place(move['from_version'])} → {_place(move['to_version'])}"
        reason = ("forced; " if move["forced"] else "") + move["reason"]
        yield (_text(move["at"]), _text(move["label"]), way, _text(move["actor"]), _text(reason))


def _place(version: int | None) -> str:
    return "none" if version is None else str(version)


def _section(
    heading: str, columns: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]
) -> Iterator[str]:
    table = _table(columns, rows)
    if table:
        yield f"## {heading}"
        yield table


def _table(columns: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", *lines])


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _text(value: Any) -> str:
    """Return a value that comes from people, unable to break out of its cell or to be markup."""
    text = " ".join(str("" if value is None else value).split())
    for character in "\\|<>[]*_#":
        text = text.replace(character, f"\\{character}")
    return text
