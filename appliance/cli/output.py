"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_FULL_WIDTH = 100_000


def json_option(command: F) -> F:
    """Add `--json` to a command that prints data."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


def url_option(command: F) -> F:
    """Add `--url` to a command that talks to an appliance."""
    text = "Where the appliance is.  [default: APPLIANCE_URL, or http://127.0.0.1:8501]"
    return click.option("--url", metavar="URL", help=text)(command)


def print_json(value: Any) -> None:
    """Print a value, records and times included, as JSON."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return records as objects, arrays as lists, times in ISO 8601, nan and infinities by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has no such numbers
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], nothing: str) -> None:
    """Print a table, or the sentence `nothing` when there are no rows."""
    if not rows:
        click.echo(nothing)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    if sys.stdout.isatty():
        Console().print(table)
        return
    # Into a pipe or a file a row stays one line, without the padding of its last column.
    console = Console(file=io.StringIO(), width=_FULL_WIDTH)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_record(record: Mapping[str, Any]) -> None:
    """Print one record, a line a field; fields without a value are left out."""
    shown = {name: cell(value) for name, value in record.items()}
    width = max(len(name) for name in shown)
    for name, text in shown.items():
        if text:
            click.echo(f"{name.replace('_', ' '):<{width}}  {text}")


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Mapping):
        return "  ".join(f"{key}={cell(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell(entry) for entry in value)
    return str(value)
