"""Freed memory is kept for the next request, and given back when a model goes; in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

FAULTS = """
import json, resource, sys
from serving import heap
if "keep" in sys.argv:
    heap.keep_freed()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [b"x" * (2 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(json.dumps(faults()))
"""
PAGES = 20 * 8 * (2 << 20) // os.sysconf("SC_PAGE_SIZE")
UNLOADING = """
import json, sys
import psutil
from serving import heap
from serving.manager import ModelConfig, ModelManager
heap.keep_freed()
def memory():
    return psutil.Process().memory_info().rss >> 20
manager = ModelManager()
manager.apply([ModelConfig("m", sys.argv[1])])
assert manager.wait_for(lambda: manager.available("m"), 120)
loaded = memory()
manager.apply([])
assert manager.wait_for(lambda: not manager.available("m"), 120)
manager.close()
print(json.dumps([loaded, memory()]))
"""


def run(program: str, *arguments: str, **environment: str) -> object:
    output = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def test_what_was_freed_is_not_asked_of_the_system_again() -> None:
    assert run(FAULTS) > PAGES / 2
    assert run(FAULTS, "keep") < PAGES / 100


def test_the_environment_has_the_last_word() -> None:
    assert run(FAULTS, "keep", MALLOC_MMAP_THRESHOLD_="1048576") > PAGES / 2


def test_an_unloaded_model_leaves_no_memory_behind(tmp_path: Path) -> None:
    class ManySmall(tf.Module):
        """96 MiB, in pieces that malloc would keep."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = [tf.Variable(tf.ones([1 << 19])) for _ in range(48)]

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.add_n([part[0] for part in self.parts]) * x}

    model = ManySmall()
    tf.saved_model.save(model, str(tmp_path / "1"), signatures=model.__call__)
    loaded, unloaded = run(UNLOADING, str(tmp_path))
    assert loaded - unloaded > 64
