"""Conditions on metrics, written as text: `auc > 0.7`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from registry.errors import InvalidInput

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CONDITION = re.compile(rf"(?P<metric>[\w./:@-]+)\s*(?P<comparison>>=|<=|!=|=|>|<)\s*(?P<bound>{_NUMBER})")


@dataclass(frozen=True)
class Condition:
    """A comparison that a metric must meet. A metric that is missing or nan meets none."""

    metric: str
    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read `auc > 0.7`; also `>=`, `<`, `<=`, `=` and `!=`. Raises InvalidInput."""
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise InvalidInput(
                f"Cannot read the condition {text!r}. Write it like 'auc > 0.7'; "
                f"the comparisons are {' '.join(COMPARISONS)}."
            )
        return cls(match["metric"], match["comparison"], float(match["bound"]))
