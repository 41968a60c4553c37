"""Gates: how rules are read, what they say about a version, and what a refused promotion tells."""

import json
import math
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from registry import Gate, GateCheck, GateReport, Registry, Version, gates, metric_rules
from registry.errors import GateRefused, InvalidInput, InvalidRule
from registry.rules import Candidate


def version(number: int, metrics: dict[str, float]) -> Version:
    now = datetime.now(UTC)
    facts = {"signatures": {}, "params": {}, "step": 1, "job": "", "source_revision": "", "libraries": {}}
    files = {"uri": f"/models/m/{number}", "size_bytes": 0, "manifest": {}}
    rest = {"tags": {}, "created_at": now, "ready_at": now, "error": "", "description": ""}
    return Version("m", number, "ready", **files, **facts, **rest, metrics=metrics)


def check(rule: str, metrics: dict[str, float], production: dict[str, float] | None = None) -> GateCheck:
    """Return the one check of a gate of `rule`, for `metrics` held against those of production."""
    labelled = {} if production is None else {"production": version(1, production)}
    report = gates.evaluate(Gate("m", "production", (rule,)), Candidate(version(2, metrics), labelled.get))
    (only,) = report.checks
    assert report.passed == only.passed
    return only


@pytest.mark.parametrize(
    ("rule", "auc", "passed"),
    [
        ("auc >= 0.7", 0.7, True),
        ("auc >= 0.7", 0.6999, False),
        ("auc > 0.7", 0.7, False),
        ("auc <= .7", 0.7, True),
        ("auc < 7e-1", 0.7, False),
        (" auc>=-1 ", -1, True),
        ("auc >= 0.7", math.nan, False),
        ("auc <= 0.7", math.nan, False),
        ("auc <= 0.7", math.inf, False),
    ],
)
def test_thresholds(rule: str, auc: float, passed: bool) -> None:
    assert check(rule, {"auc": auc}).passed == passed


@pytest.mark.parametrize(
    ("rule", "new", "old", "passed"),
    [
        ("auc no worse than production", 0.7, 0.7, True),
        ("auc no worse than production", 0.69, 0.7, False),
        ("auc no worse than production by more than 0.01", 0.6901, 0.7, True),
        ("auc no worse than production by more than 0.01", 0.68, 0.7, False),
        ("auc no worse than production by more than 0.1", 0.7, 0.8, True),
        ("average_loss no worse than production", 0.3, 0.31, True),
        ("average_loss no worse than production", 0.32, 0.31, False),
        ("average_loss no worse than production by more than 0.02", 0.32, 0.31, True),
        ("pain no worse than production (lower is better)", 1, 2, True),
        ("pain no worse than production (lower is better)", 2, 1, False),
        ("loss no worse than production, higher is better", 2, 1, True),
        ("auc no worse than production by more than 0.1 lower is better", 0.75, 0.7, True),
        ("auc no worse than production", math.nan, 0.7, False),
    ],
)
def test_no_worse_than_another_label(rule: str, new: float, old: float, passed: bool) -> None:
    metric = rule.split()[0]
    assert check(rule, {metric: new}, {metric: old}).passed == passed


def test_checks_say_what_was_measured_and_what_was_wanted() -> None:
    rule = "auc no worse than production by more than 0.01"
    failed = check(rule, {"auc": 0.65}, {"auc": 0.7})
    assert (failed.rule, failed.measured) == (rule, 0.65)
    assert failed.wanted == "at least 0.69 (production version 1: 0.7, margin 0.01)"
    assert failed.detail == f"auc is 0.65, wanted {failed.wanted}, off by 0.04"


def test_missing_metrics_fail_and_say_which_there_are() -> None:
    missing = check("auc >= 0.5", {"accuracy": 0.9, "loss": 0.1})
    assert not missing.passed
    assert missing.measured is None
    assert missing.detail == "auc was not recorded (metrics: accuracy, loss), wanted at least 0.5"
    unknown = check("auc no worse than production", {"auc": 0.9}, {"accuracy": 0.9})
    assert not unknown.passed
    assert "production version 1 has no metric 'auc'" in unknown.detail


def test_first_promotion_has_nothing_to_be_worse_than() -> None:
    first = check("auc no worse than production", {"auc": 0.1})
    assert first.passed
    assert "no version is production yet" in first.detail


@pytest.mark.parametrize(
    "text",
    [
        *("", "auc", "auc >=", ">= 0.7", "auc >= high", "auc == 0.7", "auc >= 0.7 or so", "auc >= nan"),
        *("auc no worse than", "auc not worse than production", "auc no worse than production by 0.1"),
        *("auc no worse than production by more than -0.1", "auc no worse than 7", "a b >= 1"),
    ],
)
def test_rules_that_cannot_be_read_are_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidRule, match=r"Write it like one of: 'auc >= 0\.69'") as caught:
        gates.parse_rules(["loss <= 1", text])
    assert repr(text) in str(caught.value)


def test_a_gate_with_one_bad_rule_is_not_set(census: Registry) -> None:
    with pytest.raises(InvalidRule):
        census.set_gate("census", "production", ["loss <= 1", "auc is fine"], actor="ada")
    assert census.gate("census", "production") == Gate("census", "production", ())


@pytest.mark.parametrize(
    "metric", ["loss", "average_loss", "RMSE", "val/mae", "mean_squared_error", "false_positives"]
)
def test_losses_and_errors_are_better_when_lower(metric: str) -> None:
    assert metric_rules.lower_is_better(metric)


@pytest.mark.parametrize(
    "metric", ["auc", "accuracy", "precision", "auc_precision_recall", "gloss", "closseness"]
)
def test_other_metrics_are_better_when_higher(metric: str) -> None:
    assert not metric_rules.lower_is_better(metric)


def test_metric_names_of_tensorflow_are_read() -> None:
    assert gates.parse_rule("accuracy/positive_threshold_0.500000_mean >= 0.5").text.startswith("accuracy/")
    assert check("head-1/auc:0 >= 0.5", {"head-1/auc:0": 0.5}).passed


def test_refused_promotion_moves_nothing_and_says_why(census: Registry) -> None:
    census.promote("census", 3, actor="ada")
    census.set_gate(
        "census", "production", ["auc >= 0.7", "auc no worse than production", "loss <= 0.1"], actor="ada"
    )
    revision = census.revision()
    with pytest.raises(GateRefused) as caught:
        census.promote("census", 2, actor="ada")
    error = pickle.loads(pickle.dumps(caught.value))
    assert [held.passed for held in error.report.checks] == [True, False, False]
    assert "auc is 0.72, wanted at least 0.73 (production version 3: 0.73), off by 0.01" in str(error)
    assert "loss is 0.48, wanted at most 0.1, off by 0.38" in str(error)
    assert "at least 0.7," not in str(error), "what passed is not told among what failed"
    assert census.labels("census") == {"production": 3}
    assert (len(census.history("census")), census.revision()) == (1, revision)


def test_force_overrides_the_gate_with_a_reason_and_is_recorded(census: Registry) -> None:
    census.set_gate("census", "production", ["auc >= 0.99"], actor="ada")
    with pytest.raises(InvalidInput, match="without a reason"):
        census.promote("census", 1, actor="ada", force=True)
    forced = census.promote("census", 1, actor="ada", force=True, reason="the old one is down")
    assert census.history("census") == [forced]
    assert forced.forced
    assert not forced.gate_report.passed
    census.set_gate("census", "production", [], actor="ada")
    assert not census.promote("census", 2, actor="ada", force=True, reason="in a hurry").forced


def test_forced_promotion_of_a_diverged_version_is_kept_in_the_history(
    census: Registry, saved_model: Path
) -> None:
    census.publish("census", saved_model, metrics={"auc": math.nan, "loss": math.inf})
    census.set_gate("census", "production", ["auc >= 0.7", "loss <= 1"], actor="ada")
    census.promote("census", 6, actor="ada", force=True, reason="to see the alarm\0")
    (move,) = census.history("census")
    assert [str(check.measured) for check in move.gate_report.checks] == ["nan", "inf"]
    assert move.reason == "to see the alarm\N{REPLACEMENT CHARACTER}"
    json.dumps(move.gate_report.to_json(), allow_nan=False)


def test_history_keeps_what_the_gate_said(census: Registry) -> None:
    census.set_gate("census", "production", ["auc >= 0.7"], actor="ada")
    census.promote("census", 1, actor="ada")
    (move,) = census.history("census")
    assert move.gate_report == census.check_gate("census", 1, "production")
    assert GateReport.from_json(move.gate_report.to_json()) == move.gate_report
    assert str(move.gate_report) == "passed: auc is 0.71, wanted at least 0.7"


def test_rollback_asks_no_gate(census: Registry) -> None:
    census.promote("census", 1, actor="ada")
    census.promote("census", 2, actor="ada")
    census.set_gate("census", "production", ["auc >= 0.99"], actor="ada")
    assert census.rollback("census", actor="ada").to_version == 1


def test_gates_are_declared_for_a_label_and_versioned(census: Registry) -> None:
    census.set_gate("census", "production", ["auc >= 0.99"], actor="ada")
    second = census.set_gate("census", "production", [" auc >= 0.7 ", "loss <= 1"], actor="bob")
    assert census.gate("census", "production") == second
    assert (second.rules, second.revision, second.actor) == (("auc >= 0.7", "loss <= 1"), 2, "bob")
    assert census.gate("census", "canary").revision == 0
    assert census.promote("census", 1, label="canary", actor="ada").gate_report is None
