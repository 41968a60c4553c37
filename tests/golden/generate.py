"""Record the golden numbers: `python -m tests.golden.generate [SCENARIO...]`, under TensorFlow 2.15.

The result, `estimators.json`, is what tf.estimator itself does from the fixed weights and data of
`scenarios.py`: of all of them, or of those named, beside what is there.
"""

from __future__ import annotations

import json
import sys
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
    """Run the scenarios and write the file, one on each line."""
    recorded = json.loads(GOLDEN.read_text()) if sys.argv[1:] else {}
    recorded |= {name: rounded(run(tf.estimator, name)) for name in sys.argv[1:] or SCENARIOS}
    lines = [f'"{name}":{json.dumps(recorded[name], separators=(",", ":"))}' for name in SCENARIOS]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
