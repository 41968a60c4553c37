"""Record the golden numbers: `python -m tests.golden.generate`, under TensorFlow 2.15 with tf.estimator.

The result, `estimators.json`, is what tf.estimator itself does from the fixed weights and data of
`scenarios.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.golden.scenarios import SCENARIOS, run

GOLDEN = Path(__file__).with_name("estimators.json")


def rounded(value: Any) -> Any:
    """Shorten floats to nine digits, all that float32 holds."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    """Run every scenario and write the file."""
    results = {name: rounded(run(tf.estimator, name)) for name in SCENARIOS}
    GOLDEN.write_text(json.dumps(results, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
