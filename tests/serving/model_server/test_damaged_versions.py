"""A version that is damaged, or not yet wholly copied, never becomes available and disturbs nobody."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serving import loading
from serving.manager import ModelConfig, ModelManager
from serving.policy import State
from serving.servable import Servable
from tests.serving.model_server.conftest import DEADLINE
from tests.serving.saved_models import copy_version

NewManager = Callable[..., ModelManager]
DATA = "variables/variables.data-00000-of-00001"
INDEX = "variables/variables.index"


def cut(path: Path, keep: float) -> None:
    """Leave only the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "an empty folder": ("modern", lambda v: [shutil.rmtree(v), v.mkdir()]),
    "a file instead of a folder": ("modern", lambda v: [shutil.rmtree(v), v.write_bytes(b"x")]),
    "no graph": ("modern", lambda v: (v / "saved_model.pb").unlink()),
    "an empty graph": ("modern", lambda v: (v / "saved_model.pb").write_bytes(b"")),
    "half of the graph": ("modern", lambda v: cut(v / "saved_model.pb", 0.5)),
    "no variables": ("modern", lambda v: shutil.rmtree(v / "variables")),
    "no variables in an old model": ("half_plus_two", lambda v: shutil.rmtree(v / "variables")),
    "no index of variables": ("modern", lambda v: (v / INDEX).unlink()),
    "half of the index": ("modern", lambda v: cut(v / INDEX, 0.5)),
    "no values": ("modern", lambda v: (v / DATA).unlink()),
    "empty values": ("half_plus_two", lambda v: cut(v / DATA, 0)),
    "half of the values": ("half_plus_two", lambda v: cut(v / DATA, 0.5)),
    "a wrong bit in the values": ("half_plus_two", lambda v: flip(v / DATA)),
    "no assets": ("table", lambda v: shutil.rmtree(v / "assets")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_version_is_never_available_and_the_one_before_serves_on(
    damage: str, made: Path, tmp_path: Path, new_manager: NewManager
) -> None:
    model, harm = DAMAGES[damage]
    base = tmp_path / "m"
    copy_version(made / "half_plus_two", base, 1)
    manager = new_manager()
    manager.apply([ModelConfig("m", base)])
    assert manager.wait_for(lambda: manager.available("m") == [1], DEADLINE)
    shutil.copytree(made / model, base / "copying")
    harm(base / "copying")
    (base / "copying").rename(base / "2")
    assert manager.wait_for(lambda: states(manager).get(2) is State.END, DEADLINE)
    broken, serving = manager.status("m")
    assert (broken.error_code.name, broken.error_message) != ("OK", "")
    assert serving.state is State.AVAILABLE
    assert answer(manager) == 3.0


@pytest.mark.parametrize("model", ["half_plus_three", "modern"])
def test_a_version_copied_file_by_file_is_available_only_when_it_is_whole(
    model: str, made: Path, tmp_path: Path, new_manager: NewManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cp -r` does it, each file first by half; the server tries to load it all the while."""
    tries: list[str] = []
    load = Servable.load

    def counted(path: Path, *arguments: object, **named: object) -> Servable:
        tries.append(Path(path).name)
        return load(path, *arguments, **named)

    monkeypatch.setattr(loading.Servable, "load", counted)
    base = tmp_path / "m"
    copy_version(made / "half_plus_two", base, 1)
    manager = new_manager(max_load_retries=1_000_000)
    manager.apply([ModelConfig("m", base)])
    assert manager.wait_for(lambda: manager.available("m") == [1], DEADLINE)
    files = sorted(path for path in (made / model).rglob("*") if path.is_file() and path.stat().st_size)
    for source in files:
        content = source.read_bytes()
        target = base / "2" / source.relative_to(made / model)
        target.parent.mkdir(parents=True, exist_ok=True)
        for part in (content[: len(content) // 2], content):
            assert manager.available("m") == [1]
            target.write_bytes(part)
            if source is not files[-1] or part is not content:
                # The second of these tries began after the file was written.
                before = tries.count("2")
                assert manager.wait_for(lambda before=before: tries.count("2") >= before + 2, DEADLINE)
                assert answer(manager) == 3.0
    assert manager.wait_for(lambda: manager.available("m") == [2], DEADLINE)


def states(manager: ModelManager) -> dict[int, State]:
    return {status.version: status.state for status in manager.status("m")}


def answer(manager: ModelManager) -> float:
    with manager.use("m") as servable:
        return float(servable.run("", {"x": np.array([2.0], np.float32)})["y"][0])
