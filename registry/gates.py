"""Gates: rules, written as text, that a version must meet before a label may move to it.

| rule | passes when |
| --- | --- |
| `auc >= 0.69` | the metric meets the threshold: `>=`, `<=`, `>`, `<` |
| `auc no worse than production` | the metric is at least as good as that of the version under the label |
| `auc no worse than production by more than 0.01` | the same with a margin |
| `my_cost no worse than production (lower is better)` | the direction, where the name does not tell it |
| `signatures compatible with production` | its callers can call this one: `registry.compatibility` |
| `tag owner` | the version has the tag |
| `tag stage = prod` | the tag has this value |
| `predict {"x": [[1.0]]} gives y between 0 and 1` | it answers, within the range: `registry.predictions` |
| `approved by another` | somebody other than the promoter has approved the version for the label |
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from registry import compatibility, metric_rules, predictions, version_rules
from registry.errors import InvalidRule
from registry.predictions import PredictionsMissing, Predicts
from registry.records import Gate, GateReport
from registry.rules import Candidate, Rule
from registry.version_rules import Approved, Tagged

PARSERS = (version_rules.parse, compatibility.parse, predictions.parse, metric_rules.parse)
"""Each returns the rule that a text says, or None when it is none of its kind."""


def parse_rule(text: str) -> Rule:
    """Return the rule that `text` says. Raises InvalidRule, which shows examples."""
    stripped = text.strip()
    for parse in PARSERS:
        if (rule := parse(stripped)) is not None:
            return rule
    raise InvalidRule(text)


def parse_rules(rules: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules that the texts say. Raises InvalidRule for the first that says none."""
    if isinstance(rules, str):
        rules = [rules]
    return tuple(parse_rule(text) for text in rules)


def evaluate(gate: Gate, candidate: Candidate) -> GateReport:
    """Hold every rule of `gate` against the candidate.

    Raises:
        PredictionsMissing: the gate asks for predictions that the candidate does not come with.
    """
    rules, version = parse_rules(gate.rules), candidate.version
    missing = [
        rule for rule in rules if isinstance(rule, Predicts) and rule.text not in candidate.predictions
    ]
    if missing:
        raise PredictionsMissing(version, missing)
    checks = tuple(rule.check(candidate) for rule in rules)
    return GateReport(version.model, version.version, gate.label, gate.revision, checks)


def remedy(report: GateReport) -> str:
    """Return what to do about a report that did not pass, in words.

    An approval or a tag can still be given to the version as it is; any other rule needs another version.
    """
    steps = [_step(report, check.rule) for check in report.checks if not check.passed]
    if not all(steps):
        return "Publish a better version, or override with force and a reason."
    return f"First {' and '.join(steps)}; then promote again, or override with force and a reason."


def _step(report: GateReport, text: str) -> str:
    """Return what lets the same version meet a rule, in words; empty when nothing does."""
    match parse_rule(text):
        case Approved():
            command = f"approve {report.model} {report.version} --label {report.label}"
            return f"have somebody else approve it (`appliance registry {command}`)"
        case Tagged(key=key, value=value):
            given = "VALUE" if value is None else value
            command = f"tag {report.model} {shlex.quote(f'{key}={given}')} --version {report.version}"
            return f"set the tag (`appliance registry {command}`)"
    return ""
