"""The demo, which is the main job on real data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def test_demo_meets_its_promises_and_leaves_nothing(tmp_path: Path) -> None:
    """Both models reach their AUC, the gate lets them through, the protocols agree, and all of it ends."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    demo = subprocess.run(
        [sys.executable, "-m", "examples.flights.demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert demo.returncode == 0, demo.stdout[-4000:] + demo.stderr[-4000:]
    assert "MISSED" not in demo.stdout
    assert demo.stdout.count("Answered by version") == 2
    assert not list(tmp_path.glob("appliance-demo-*"))
    started = [each for each in psutil.process_iter() if str(tmp_path) in environment_of(each).values()]
    assert not started


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; nothing for one that has ended meanwhile, or is not ours."""
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}
