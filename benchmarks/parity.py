"""Each public symbol of tf.estimator 2.15 and of TF.Learn: is it here, and does it behave?

`python -m benchmarks.parity [--json]` ends with exit code 1 when one is missing or does not. The symbols of
tf.estimator, with their parameters and members, were recorded from it: tests/golden/symbols.json.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RECORDED = Path(__file__).parents[1] / "tests" / "golden" / "symbols.json"


class Row(NamedTuple):
    """The verdict on one symbol."""

    symbol: str
    present: bool
    same_form: bool
    behaves: bool
    remark: str


def main() -> int:
    """Print the table; return 0 when every symbol is here and behaves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    as_json = parser.parse_args().json
    rows = verdicts()
    if as_json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        show(rows)
    return 0 if all(row.present and row.same_form and row.behaves for row in rows) else 1


def verdicts() -> list[Row]:
    """Return the verdict on each symbol."""
    logging.disable(logging.WARNING)
    recorded = json.loads(RECORDED.read_text())
    from benchmarks.parity_table import table

    checks = table()
    rows = []
    for number, symbol in enumerate([*recorded, *(name for name in checks if name not in recorded)], 1):
        print(f"\r{number}/{len(checks)} {symbol:60}", end="", file=sys.stderr, flush=True)
        rows.append(verdict(symbol, recorded.get(symbol), checks.get(symbol)))
    print(file=sys.stderr)
    return rows


def verdict(symbol: str, recorded: dict[str, Any] | None, check: Any) -> Row:
    """Return the verdict on one symbol."""
    found = lookup(symbol)
    if found is None:
        return Row(symbol, False, False, False, "missing")
    difference = "" if recorded is None else difference_of_form(found, recorded)
    if check is None:
        return Row(symbol, True, not difference, False, "no check of its behaviour")
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever a check runs into is its verdict; the others go on
        logging.debug("check_failed\n%s", traceback.format_exc())
        return Row(
            symbol, True, not difference, False, f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        )
    return Row(symbol, True, not difference, True, difference)


def lookup(symbol: str) -> Any:
    """Return a symbol of `appliance.estimator`, or None."""
    from appliance import estimator

    if symbol.startswith("sklearn."):
        return getattr(importlib.import_module("appliance.estimator.sklearn"), symbol.partition(".")[2], None)
    try:
        return functools.reduce(getattr, symbol.split("."), estimator)
    except AttributeError:
        return None


def difference_of_form(found: Any, recorded: dict[str, Any]) -> str:
    """Return which parameters or members of the original are not here, in its order and with its defaults."""
    # A plain exception has no signature to compare.
    ours = {} if issubclass_of(found, BaseException) else inspect.signature(found).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in ours.values())
    missing = [name for name in recorded["parameters"] if name not in ours and not takes_any]
    if missing:
        return f"lacks parameters {missing}"
    order = [name for name in ours if name in recorded["parameters"]]
    if not takes_any and order != list(recorded["parameters"]):
        return f"has its parameters in another order: {order}"
    for name, original in recorded["parameters"].items():
        if isinstance(original, dict) and name in ours and ours[name].default != original["default"]:
            return f"has {name}={ours[name].default!r} by default, not {original['default']!r}"
    members = [name for name in recorded.get("members", ()) if not hasattr(found, name)]
    return f"lacks members {members}" if members else ""


def issubclass_of(found: Any, base: type) -> bool:
    """Return whether a symbol is a class below `base`."""
    return inspect.isclass(found) and issubclass(found, base)


def show(rows: list[Row]) -> None:
    """Print the table and what it comes to."""
    from benchmarks.table import print_table

    marks = {True: "yes", False: "NO"}
    print_table(
        "tf.estimator 2.15 and TF.Learn, in appliance.estimator",
        ("symbol", "present", "same form", "behaves", "remark"),
        [
            (row.symbol, marks[row.present], marks[row.same_form], marks[row.behaves], row.remark)
            for row in rows
        ],
    )
    print(
        f"{len(rows)} symbols; missing {sum(not row.present for row in rows)}, "
        f"of another form {sum(not row.same_form for row in rows)}, "
        f"not behaving {sum(not row.behaves for row in rows)}"
    )


if __name__ == "__main__":
    sys.exit(main())
