"""Whether checkpoints cross over between a real tf.estimator and this library, tried live.

    python -m benchmarks.migration --peer-python PATH

`PATH` is an interpreter with TensorFlow 2.15. Either side trains models and keeps their checkpoints; both
use them: evaluate, predict, export, train on. The table shows the largest difference between their numbers,
relative to the larger of 1 and the number. Exits with 1 when one is above 1e-5.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.table import print_table
from tests.golden.migration import NAMES, NUMBERS

LIMIT = 1e-5


def difference(one: Any, other: Any) -> float:
    """Return the largest difference between two nested structures of numbers; infinite where texts differ."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return float("inf")
        return max(difference(one[key], other[key]) for key in one)
    if isinstance(one, list):
        if len(one) != len(other):
            return float("inf")
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, str):
        return 0.0 if one == other else float("inf")
    return abs(one - other) / max(1.0, abs(other))


def run(python: str, verb: str, folder: Path) -> None:
    """Train models, or use checkpoints, under an interpreter."""
    command = [python, "-m", "tests.golden.migration", verb, str(folder)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, env=os.environ
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def main() -> None:
    """Try both directions and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", required=True, help="an interpreter with TensorFlow 2.15")
    pythons = {"tf.estimator": parser.parse_args().peer_python, "appliance": sys.executable}
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as temporary:
        for writer, python in pythons.items():
            written = Path(temporary, writer)
            run(python, "train", written)
            numbers = {}
            for reader, other in pythons.items():
                folder = Path(shutil.copytree(written, Path(temporary, f"{writer}-{reader}")))
                run(other, "use", folder)
                numbers[reader] = json.loads((folder / NUMBERS).read_text())
            for name in NAMES:
                found = difference(numbers["appliance"][name], numbers["tf.estimator"][name])
                worst = max(worst, found)
                rows.append((writer, name, f"{found:.1e}"))
    print_table("Checkpoints used by both", ("written by", "model", "largest difference"), rows)
    sys.exit(worst > LIMIT)


if __name__ == "__main__":
    main()
