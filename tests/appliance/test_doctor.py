"""`appliance doctor migrate`."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.cli.main import cli
from appliance.migration import outcome_of, scan, scan_file
from appliance.migration.symbols import SAME

SYMBOLS = json.loads((Path(__file__).parents[1] / "golden" / "symbols.json").read_text())

SOURCE = """import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.estimator import DNNClassifier as Classifier
from tensorflow import keras
learn = tf.contrib.learn

def model_fn(features, labels, mode):
    if mode == tf.estimator.ModeKeys.TRAIN:
        return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_sum(labels))

Classifier([1], [])
tf1.estimator.LinearClassifier([])
tf.estimator.BoostedTreesRegressor([], 1)
learn.Experiment
keras.estimator.model_to_estimator
self.tf.estimator.Estimator
"""


def found(source: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.symbol, each.outcome.kind) for each in scan(source)]


def test_every_symbol_is_found_through_aliases_with_its_line() -> None:
    """Imports, renamings and plain assignments are followed; other names are left alone."""
    assert found(SOURCE) == [
        (3, "tf.estimator.DNNClassifier", "same"),
        (8, "tf.estimator.ModeKeys", "same"),
        (9, "tf.estimator.EstimatorSpec", "same"),
        (11, "tf.estimator.DNNClassifier", "same"),
        (12, "tf.compat.v1.estimator.LinearClassifier", "changed"),
        (13, "tf.estimator.BoostedTreesRegressor", "gone"),
        (14, "tf.contrib.learn.Experiment", "same"),
        (15, "tf.keras.estimator.model_to_estimator", "changed"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from tensorflow.compat.v1 import estimator as e\ne.EvalSpec",
        "import tensorflow.compat.v1.estimator as e\ne.EvalSpec",
        "import tensorflow.compat.v1\ntensorflow.compat.v1.estimator.EvalSpec",
    ],
)
def test_v1_module_is_recognised_however_it_is_imported(source: str) -> None:
    assert (2, "tf.compat.v1.estimator.EvalSpec", "same") in found(source)


def test_every_public_symbol_of_tf_estimator_is_in_the_table() -> None:
    assert set(SYMBOLS) <= SAME


@pytest.mark.parametrize("symbol", sorted(SAME))
def test_what_the_table_promises_is_there(symbol: str) -> None:
    """A replacement that the report names can be imported."""
    from appliance import estimator

    replacement = outcome_of(f"tf.estimator.{symbol}").replacement.removeprefix("estimator.")
    assert functools.reduce(getattr, replacement.split("."), estimator) is not None


def test_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    assert scan_file(tmp_path / "none.py").error == "Cannot read it: No such file or directory."
    (tmp_path / "two.py").write_text("print 1")
    assert "Cannot parse it as Python" in scan_file(tmp_path / "two.py").error


def test_command_prints_both_forms_and_its_exit_code_says_whether_all_is_here(
    tmp_path: Path,
) -> None:
    (tmp_path / "old.py").write_text(SOURCE)
    (tmp_path / "fine.py").write_text("import tensorflow as tf\ntf.estimator.Estimator")
    run = CliRunner().invoke(cli, ["doctor", "migrate", str(tmp_path)])
    assert run.exit_code == 1
    assert "tf.estimator.BoostedTreesRegressor" in run.output
    fine = CliRunner().invoke(cli, ["doctor", "migrate", "--json", str(tmp_path / "fine.py")])
    assert fine.exit_code == 0
    assert json.loads(fine.output)[0]["findings"][0]["replacement"] == "estimator.Estimator"
