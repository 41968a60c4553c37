"""Rules about metrics: thresholds, and not worse than the version under a label.

Losses and errors are better when lower, every other metric when higher.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from registry.errors import InvalidRule
from registry.records import GateCheck, Version
from registry.rules import Candidate, Rule
from registry.values import LABEL_NAME

LOWER_IS_BETTER = frozenset(
    {
        *("loss", "error", "errors", "err", "rmse", "mse", "mae", "mape", "msle", "logloss", "perplexity"),
        *("entropy", "deviance", "divergence", "latency", "cost", "false"),
    }
)
"""A metric with one of these words in its name is better when lower; `false` as in false positives."""

_METRIC = r"(?P<metric>[\w./:@-]+)"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_THRESHOLD = re.compile(rf"{_METRIC}\s*(?P<comparison>>=|<=|>|<)\s*(?P<bound>{_NUMBER})")
_NO_WORSE = re.compile(
    rf"{_METRIC}\s+no\s+worse\s+than\s+(?P<label>{LABEL_NAME.pattern})"
    rf"(?:\s+by\s+more\s+than\s+(?P<margin>{_NUMBER}))?"
    r"(?:\s*,?\s*\(?(?P<direction>higher|lower)\s+is\s+better\)?)?"
)
_COMPARE: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    ">=": (operator.ge, "at least"),
    "<=": (operator.le, "at most"),
    ">": (operator.gt, "more than"),
    "<": (operator.lt, "less than"),
}


@dataclass(frozen=True)
class Threshold:
    """`auc >= 0.69`."""

    text: str
    metric: str
    comparison: str
    bound: float

    def check(self, candidate: Candidate) -> GateCheck:
        """Compare the metric with the bound. A metric that is missing or nan never passes."""
        compare, words = _COMPARE[self.comparison]
        return _check(
            self.text, candidate.version, self.metric, compare, self.bound, f"{words} {self.bound:g}"
        )


@dataclass(frozen=True)
class NoWorse:
    """`auc no worse than production by more than 0.01`."""

    text: str
    metric: str
    label: str
    margin: float
    higher_is_better: bool

    def check(self, candidate: Candidate) -> GateCheck:
        """Compare with the version under the label. Without such a version there is nothing to lose."""
        version, other = candidate.version, candidate.labelled(self.label)
        measured = version.metrics.get(self.metric)
        if other is None:
            return GateCheck(
                self.text, True, measured, "anything", f"{self.text}: no version is {self.label} yet"
            )
        reference = other.metrics.get(self.metric)
        if reference is None:
            wanted = f"no worse than version {other.version}"
            detail = f"{self.text}: {self.label} version {other.version} has no metric {self.metric!r}"
            return GateCheck(self.text, False, measured, wanted, detail)
        bound = reference - self.margin if self.higher_is_better else reference + self.margin
        # 0.8 - 0.1 is a little more than 0.7 in binary, and a version at exactly 0.7 must pass.
        bound = round(bound, 12) if self.margin else bound
        compare, words = _COMPARE[">=" if self.higher_is_better else "<="]
        margin = f", margin {self.margin:g}" if self.margin else ""
        wanted = f"{words} {bound:g} ({self.label} version {other.version}: {reference:g}{margin})"
        return _check(self.text, version, self.metric, compare, bound, wanted)


def parse(text: str) -> Rule | None:
    """Return the rule that `text`, without space around it, says; None when it is no rule about a metric.

    Raises:
        InvalidRule: the margin is negative.
    """
    if match := _THRESHOLD.fullmatch(text):
        return Threshold(text, match["metric"], match["comparison"], float(match["bound"]))
    if match := _NO_WORSE.fullmatch(text):
        margin = float(match["margin"] or 0)
        if margin < 0:
            raise InvalidRule(text, "a margin is not negative")
        higher = (
            match["direction"] == "higher" if match["direction"] else not lower_is_better(match["metric"])
        )
        return NoWorse(text, match["metric"], match["label"], margin, higher)
    return None


def lower_is_better(metric: str) -> bool:
    """Return whether a metric of this name is usually better when lower, as losses and errors are."""
    return not LOWER_IS_BETTER.isdisjoint(re.split(r"[^a-z]+", metric.lower()))


def _check(
    rule: str,
    version: Version,
    metric: str,
    compare: Callable[[float, float], bool],
    bound: float,
    wanted: str,
) -> GateCheck:
    measured = version.metrics.get(metric)
    if measured is None:
        known = ", ".join(sorted(version.metrics)) or "none"
        return GateCheck(
            rule, False, None, wanted, f"{metric} was not recorded (metrics: {known}), wanted {wanted}"
        )
    passed = compare(measured, bound)
    off_by = "" if passed or math.isnan(measured) else f", off by {abs(measured - bound):.3g}"
    return GateCheck(rule, passed, measured, wanted, f"{metric} is {measured:g}, wanted {wanted}{off_by}")
