"""Gates that ask for a prediction, made by a real model."""

from pathlib import Path

import pytest

from registry import Registry
from registry.errors import GateRefused
from serving import smoke
from tests.serving import saved_models


@pytest.fixture(params=["local", "memory"])
def registry(request: pytest.FixtureRequest, tmp_path: Path):
    """A registry with one version of `half`, x / 2 + 2, on a disk and on another of fsspec's stores."""
    root = str(tmp_path / "models") if request.param == "local" else f"memory://{tmp_path.name}"
    with Registry(f"sqlite:///{tmp_path}/registry.db", root) as opened:
        opened.import_model("half", saved_models.half_plus(tmp_path / "half"))
        yield opened


def test_model_is_promoted_when_its_answers_are_as_expected(registry: Registry) -> None:
    registry.set_gate(
        "half",
        "production",
        [
            'predict {"x": [[1.0], [3.0]]} gives y between 2.5 and 3.5',
            'predict regress {"inputs": [{"x": 4.0}]} gives outputs between 4 and 4',
            "signatures compatible with production",
        ],
        actor="ada",
    )
    report = registry.promote("half", 1, actor="ada", predictor=smoke.predict).gate_report
    assert [check.measured for check in report.checks[:2]] == ["y from 2.5 to 3.5", "outputs = 4"]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ('predict {"x": [[1.0]]} gives y between 0 and 1', "gave y = 2.5, wanted y between 0 and 1"),
        ('predict {"x": [[1.0]]} gives z between 0 and 9', r"gave no output z \(outputs: y\)"),
        ('predict {"z": [[1.0]]}', "did not predict: InvalidInput: Missing named input: x"),
        ('predict score {"x": [[1.0]]}', "did not predict: UnknownSignatureKey"),
        ('predict classify {"inputs": [{"x": 1.0}]} gives classes between 0 and 1', "no numbers in classes"),
    ],
)
def test_refusal_says_what_the_model_answered(registry: Registry, rule: str, told: str) -> None:
    registry.set_gate("half", "production", [rule], actor="ada")
    with pytest.raises(GateRefused, match=told):
        registry.promote("half", 1, actor="ada", predictor=smoke.predict)
