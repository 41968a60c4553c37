"""Records what the programs of examples/migrated print under tf.estimator itself: run under TensorFlow 2.15.

`python -m tests.golden.migrated > tests/golden/migrated.json`
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "examples" / "migrated"
NAMES = ("census", "custom_model", "sequences")
STEPS = 100
_NUMBER = re.compile(r"(?P<name>\w[\w/ ]*)'?: (?:np\.\w+\()?(?P<value>-?\d+(?:\.\d+)?(?:e-?\d+)?)")


def numbers_of(name: str, *, import_from: str) -> dict[str, float]:
    """Run a program with `estimator` imported from a package; return each number it prints, by name."""
    source = (PROGRAMS / f"{name}.py").read_text()
    changed = source.replace("from appliance import estimator", f"from {import_from} import estimator")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(changed)
        run = subprocess.run(
            [sys.executable, str(program), "--folder", folder, "--steps", str(STEPS)],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
    if run.returncode != 0:
        raise RuntimeError(f"{name} ended with exit code {run.returncode}:\n{run.stderr[-4000:]}")
    numbers: dict[str, float] = {}
    for line in run.stdout.splitlines():
        title, _, rest = line.partition(": {")
        for match in _NUMBER.finditer(rest if rest else line):
            numbers[f"{title}/{match['name']}" if rest else match["name"]] = float(match["value"])
    return numbers


if __name__ == "__main__":
    print(json.dumps({name: numbers_of(name, import_from="tensorflow") for name in NAMES}, indent=1))
