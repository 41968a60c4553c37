"""Rules beyond metrics: signatures, tags, predictions, approval. How they are read, what they say."""

import math
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from registry import Approval, GateCheck, GateReport, Registry, gates
from registry.compatibility import differences
from registry.errors import GateRefused, InvalidInput, InvalidRule
from registry.predictions import Predicts
from registry.rules import Candidate
from tests.registry.test_gates import version


def held(rule: str, **candidate: Any) -> GateCheck:
    """Return what the rule says of a version with the given tags, signatures or approvals."""
    parsed = gates.parse_rule(rule)
    given = version(2, {})
    for name in ("tags", "signatures"):
        if name in candidate:
            object.__setattr__(given, name, candidate.pop(name))
    return parsed.check(Candidate(given, **candidate))


@pytest.mark.parametrize(
    ("rule", "tags", "passed", "detail"),
    [
        ("tag owner", {"owner": "ada"}, True, "tag owner = ada, wanted tag owner"),
        ("tag owner", {"team": "x"}, False, "tag owner is not set (tags: team), wanted tag owner"),
        ("tag stage = prod", {"stage": "prod"}, True, "tag stage = prod, wanted tag stage = prod"),
        ("tag stage=prod", {"stage": "test"}, False, "tag stage = test, wanted tag stage = prod"),
        ("tag reviewed by = no", {}, None, ""),
        (
            "tag note = two words",
            {"note": "two words"},
            True,
            "tag note = two words, wanted tag note = two words",
        ),
    ],
)
def test_tags(rule: str, tags: dict[str, str], passed: bool | None, detail: str) -> None:
    if passed is None:
        with pytest.raises(InvalidRule):
            gates.parse_rule(rule)
        return
    check = held(rule, tags=tags)
    assert (check.passed, check.detail) == (passed, detail)


def approval(actor: str) -> Approval:
    return Approval("m", 2, "production", actor, "", version(2, {}).created_at)


@pytest.mark.parametrize(
    ("approvers", "actor", "passed", "detail"),
    [
        ([], "ada", False, "not approved, wanted approved by somebody other than ada"),
        (["ada"], "ada", False, "approved by ada, wanted approved by somebody other than ada"),
        (["ada", "bob"], "ada", True, "approved by ada, bob, wanted approved by somebody other than ada"),
        (["ada"], "", True, "approved by ada, wanted approved by somebody"),
    ],
)
def test_approval_must_come_from_another(approvers: list[str], actor: str, passed: bool, detail: str) -> None:
    check = held("approved by another", approvals=[approval(each) for each in approvers], actor=actor)
    assert (check.passed, check.detail) == (passed, detail)


def tensor(dtype: str, shape: list[int | None] | None, **more: bool) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, **more}


def serving_default(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"serving_default": {"method_name": "p", "inputs": inputs, "outputs": outputs}}


OLD = serving_default({"x": tensor("float32", [None, 4])}, {"y": tensor("float32", [None, 1])})


@pytest.mark.parametrize(
    ("inputs", "outputs", "broken"),
    [
        ({}, {}, []),
        ({"x": tensor("float32", None)}, {}, []),
        ({"x": tensor("float32", [None, None])}, {}, []),
        ({"x": tensor("float32", [8, 4])}, {}, ["input x of serving_default takes [8, 4], took [?, 4]"]),
        ({"x": tensor("float32", [None])}, {}, ["input x of serving_default takes [?], took [?, 4]"]),
        ({"x": tensor("int64", [None, 4])}, {}, ["input x of serving_default is int64, was float32"]),
        ({"x": None}, {}, ["input x of serving_default is gone"]),
        ({"z": tensor("string", [])}, {}, ["input z of serving_default is new and has no default"]),
        ({"z": tensor("string", [], optional=True)}, {}, []),
        ({}, {"y": None}, ["output y of serving_default is gone"]),
        ({}, {"y": tensor("float64", [None, 1])}, ["output y of serving_default is float64, was float32"]),
        ({}, {"y": tensor("float32", [None, 2])}, ["output y of serving_default is [?, 2], was [?, 1]"]),
        ({}, {"y": tensor("float32", None)}, []),
        ({}, {"more": tensor("float32", [])}, []),
    ],
)
def test_signatures_are_compatible_when_no_caller_breaks(
    inputs: dict[str, Any], outputs: dict[str, Any], broken: list[str]
) -> None:
    changed = {
        kind: {
            alias: each
            for alias, each in {**OLD["serving_default"][kind], **change}.items()
            if each is not None
        }
        for kind, change in (("inputs", inputs), ("outputs", outputs))
    }
    assert list(differences(OLD, serving_default(**changed))) == broken


def test_signature_rule_compares_with_the_version_under_the_label() -> None:
    rule = "signatures compatible with production"
    old = version(1, {})
    object.__setattr__(old, "signatures", OLD)
    labelled = {"production": old}.get
    assert held(rule, signatures={}).detail == f"{rule}: no version is production yet"
    assert held(rule, signatures=OLD, labelled=labelled).passed
    gone = held(rule, signatures={"other": OLD["serving_default"]}, labelled=labelled)
    assert (gone.passed, gone.measured) == (False, "signature serving_default is gone")
    assert gone.wanted == "every signature of production version 1"
    assert "of version 2 no signatures are recorded" in held(rule, signatures={}, labelled=labelled).detail


def predicted(rule: str, outputs: Any) -> GateCheck:
    parsed = gates.parse_rule(rule)
    assert isinstance(parsed, Predicts)

    def predictor(*_: Any) -> Any:
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    return parsed.predict(version(2, {}), predictor)


@pytest.mark.parametrize(
    ("rule", "outputs", "passed", "told"),
    [
        (
            'predict {"x": 1} gives y between 0 and 1',
            {"y": [[0.0], [1.0]]},
            True,
            "gave y from 0 to 1, wanted",
        ),
        (
            'predict {"x": 1} gives y between 0 and 1',
            {"y": [1.5]},
            False,
            "gave y = 1.5, wanted y between 0 and 1",
        ),
        ('predict {"x": 1} gives y between 0 and 1', {"y": [math.nan]}, False, "gave y with nan"),
        ('predict {"x": 1} gives y between 0 and 1', {"z": [1]}, False, "gave no output y (outputs: z)"),
        ('predict {"x": 1} gives y between 0 and 1', {"y": [b"a"]}, False, "gave no numbers in y"),
        ('predict {"x": 1} gives y between 0 and 1', {"y": []}, False, "gave no numbers in y"),
        (
            'predict {"x": 1}',
            {"y": [2.0], "text": [b"a"]},
            True,
            "gave text without numbers, y = 2, wanted finite",
        ),
        ('predict {"x": 1}', {"y": [1.0, math.inf]}, False, "gave y from 1 to inf, wanted finite outputs"),
        (
            'predict s {"x": 1} gives a between -1 and 1, b between 0 and 1e3',
            {"a": -1, "b": 2e3},
            False,
            "s gave b = 2000, wanted a between -1 and 1, b between 0 and 1000",
        ),
        ('predict {"x": 1}', ValueError("no such op"), False, "did not predict: ValueError: no such op"),
    ],
)
def test_predictions(rule: str, outputs: Any, passed: bool, told: str) -> None:
    check = predicted(rule, outputs)
    assert check.passed == passed
    assert told in check.detail


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ('predict {"x": [1}', "the inputs are no JSON"),
        ('predict {"x": 1} gives', "cannot read 'gives'"),
        ('predict {"x": 1} gives y between 2 and 1', "2 is more than 1"),
        ('predict {"x": 1} gives y between 0 and 1 or so', "cannot read 'or so'"),
        ('predict {"x": 1}, y between 0 and 1', "cannot read ', y between 0 and 1'"),
        ('predict {"x": 1} gives y above 0', "cannot read 'gives y above 0'"),
        ("predict serving_default", ""),
        ("auc no worse than production by more than -1", "a margin is not negative"),
        ("approved by ada", ""),
        ("signatures compatible", ""),
        ("tag", ""),
        ("tag stage =", ""),
    ],
)
def test_rules_that_cannot_be_read_say_why_and_show_examples(rule: str, problem: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        gates.parse_rule(rule)
    assert problem in str(caught.value)
    assert "'approved by another'" in str(caught.value)


def test_a_promotion_makes_its_predictions_outside_of_transactions(census: Registry) -> None:
    """The predictor itself writes to the registry, and the gate changes under it: both must be possible."""
    first, second = 'predict {"x": 1} gives y between 0 and 1', 'predict {"x": 2} gives y between 0 and 1'
    census.set_gate("census", "production", [first], actor="ada")
    asked: list[Any] = []

    def predictor(given: Any, signature_name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append((given.version, signature_name, inputs["x"]))
        if len(asked) == 1:
            census.set_gate("census", "production", [first, second], actor="bob")
        return {"y": [0.5]}

    move = census.promote("census", 2, actor="ada", predictor=predictor)
    assert asked == [(2, "serving_default", 1), (2, "serving_default", 2)]
    assert [(check.rule, check.passed) for check in move.gate_report.checks] == [
        (first, True),
        (second, True),
    ]
    assert GateReport.from_json(move.gate_report.to_json()) == move.gate_report


def test_without_a_predictor_a_prediction_fails_and_says_so(census: Registry) -> None:
    census.set_gate("census", "production", ['predict {"x": 1}'], actor="ada")
    with pytest.raises(
        GateRefused, match="no prediction could be made: there is nothing here to run a model"
    ):
        census.promote("census", 2, actor="ada")
    assert not census.check_gate("census", 2, "production").passed


def test_approval_lets_another_promote(census: Registry) -> None:
    census.set_gate("census", "production", ["approved by another"], actor="ada")
    first = census.approve("census", 2, "production", actor="ada", comment="looks fine")
    assert census.approve("census", 2, "production", actor="ada", comment="again") == first
    census.approve("census", 2, "canary", actor="bob")
    census.approve("census", 3, "production", actor="bob")
    with pytest.raises(GateRefused, match="approved by ada, wanted approved by somebody other than ada"):
        census.promote("census", 2, actor="ada")
    assert census.promote("census", 2, actor="bob").to_version == 2
    assert census.approvals("census", 2, "production") == [first]
    approved = census.events("census", kinds=["version.approved"], version=2, label="production")
    assert [(event.actor, event.reason) for event in approved] == [("ada", "looks fine")]
    with pytest.raises(InvalidInput, match="without an actor"):
        census.approve("census", 2, "production", actor="")


@pytest.mark.parametrize(
    ("rules", "advice"),
    [
        (
            ["auc >= 0.5", "approved by another"],
            "First have somebody else approve it (`appliance registry approve census 2 --label production`); "
            "then promote again, or override with force and a reason.",
        ),
        (
            ["tag owner", "tag stage = two words", "approved by another"],
            "First set the tag (`appliance registry tag census owner=VALUE --version 2`) and "
            "set the tag (`appliance registry tag census 'stage=two words' --version 2`) and "
            "have somebody else approve it (`appliance registry approve census 2 --label production`); "
            "then promote again, or override with force and a reason.",
        ),
        (
            ["auc >= 0.99", "approved by another"],
            "Publish a better version, or override with force and a reason.",
        ),
    ],
)
def test_refusal_advises_another_version_only_where_nothing_else_helps(
    census: Registry, rules: list[str], advice: str
) -> None:
    census.set_gate("census", "production", rules, actor="ada")
    with pytest.raises(GateRefused) as refused:
        census.promote("census", 2, actor="ada")
    assert str(pickle.loads(pickle.dumps(refused.value))).endswith(f". {advice}")


def test_every_revision_of_a_gate_stays_readable(census: Registry) -> None:
    first = census.set_gate("census", "production", ["tag owner"], actor="ada")
    second = census.set_gate("census", "production", ["tag owner", "auc >= 0.5"], actor="bob")
    third = census.set_gate("census", "production", [], actor="ada")
    assert census.gate_revisions("census", "production") == [third, second, first]
    assert census.gate("census", "production") == third
