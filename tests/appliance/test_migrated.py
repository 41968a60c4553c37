"""Programs written for tf.estimator, with only their import changed, give tf.estimator's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.migrated import NAMES, numbers_of

# tf.estimator's own RNN starts from weights that no seed fixes: two runs of it differed by 0.02 in the loss.
# Its numbers from fixed weights are in tests/golden; here its program has to learn as well.
TOLERANCE = {"sequences": 0.05}
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "migrated.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_program_prints_the_numbers_that_it_printed_with_tf_estimator(name: str) -> None:
    """Every loss and metric agrees; a hundred steps of training make the last digits differ a little."""
    tolerance = TOLERANCE.get(name, 1e-3)
    assert numbers_of(name, import_from="appliance") == pytest.approx(GOLDEN[name], rel=1e-3, abs=tolerance)
