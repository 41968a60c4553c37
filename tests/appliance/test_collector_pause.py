"""TensorFlow's import and the garbage collector, each in a process of its own."""

import subprocess
import sys
from pathlib import Path


def run(program: str, *path: Path) -> str:
    program = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_what_tensorflow_makes_is_left_alone_and_what_is_made_later_is_collected() -> None:
    """Also what was garbage before: it is gone, not kept for ever."""
    program = """
import gc, weakref, appliance
class Ring:
    def __init__(self): self.self = self
before = weakref.ref(Ring())
import tensorflow as tf
assert before() is None and gc.isenabled() and gc.get_freeze_count() > 100_000
after = weakref.ref(Ring())
gc.collect()
print(after(), tf.add(1, 2).numpy())
"""
    assert run(program).split() == ["None", "3"]


def test_import_that_fails_leaves_the_collector_running(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import gc\nprint(gc.isenabled())\nraise OSError\n")
    program = """
import gc, serving
try:
    import tensorflow
except OSError:
    print(gc.isenabled(), gc.get_freeze_count())
"""
    assert run(program, tmp_path).split() == ["False", "True", "0"]


def test_collector_that_is_off_stays_off(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("")
    program = (
        "import gc, appliance\ngc.disable()\nimport tensorflow\nprint(gc.isenabled(), gc.get_freeze_count())"
    )
    assert run(program, tmp_path).split() == ["False", "0"]
