"""Checkpoints on disk: reading them, and keeping one safe while it is in use."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from appliance.estimator.run_config import RunConfig

_PINS = "eval-pins"
_numbers = itertools.count()


def read(checkpoint_path: str) -> Any:
    """Return a reader of the variables of a checkpoint, by name."""
    return tf.train.load_checkpoint(checkpoint_path)


def global_step(checkpoint_path: str | None) -> int:
    """Return the global step in a checkpoint, 0 when there is no checkpoint or none in it."""
    if checkpoint_path is None:
        return 0
    reader = read(checkpoint_path)
    name = tf.compat.v1.GraphKeys.GLOBAL_STEP
    return int(reader.get_tensor(name)) if reader.has_tensor(name) else 0


def check_exists(checkpoint_path: str) -> None:
    """Check that a checkpoint is there.

    Raises:
        ValueError: it is not.
    """
    if not tf.io.gfile.glob(f"{checkpoint_path}.index"):
        raise ValueError(
            f"Couldn't find a checkpoint at {checkpoint_path}. "
            "Give the path without a suffix, as in model_dir/model.ckpt-100."
        )


class CheckpointMismatch(ValueError):
    """The checkpoint holds other variables than the model has."""

    def __init__(
        self, path: str, missing: Sequence[str], shapes: Sequence[str], unused: Sequence[str]
    ) -> None:
        super().__init__(path, missing, shapes, unused)
        self.path, self.missing, self.shapes, self.unused = path, missing, shapes, unused

    def __str__(self) -> str:
        parts = [f"The checkpoint {self.path} does not fit the model."]
        for what, names in (
            ("Variables of the model that it lacks", self.missing),
            ("Shapes that differ", self.shapes),
            ("What it holds that the model has not", self.unused),
        ):
            if names:
                parts.append(f"{what}: {', '.join(names)}.")
        parts.append(
            "Build the model with the settings that it was trained with, give another model_dir, or start "
            "from its variables with warm_start_from."
        )
        return " ".join(parts)


def mismatch(checkpoint_path: str | None, variables: Iterable[Any]) -> CheckpointMismatch | None:
    """Return how a checkpoint differs from the variables that are to be restored; None where it does not."""
    if checkpoint_path is None:
        return None
    saved = {name: list(shape) for name, shape in tf.train.list_variables(checkpoint_path)}
    wanted = {variable.op.name: variable.shape for variable in variables}
    missing = [f"{name} {shape}" for name, shape in sorted(wanted.items()) if name not in saved]
    shapes = [
        f"{name} is {shape} in the model and {saved[name]} in the checkpoint"
        for name, shape in sorted(wanted.items())
        if name in saved and not shape.is_compatible_with(saved[name])
    ]
    unused = [f"{name} {shape}" for name, shape in sorted(saved.items()) if name not in wanted]
    return CheckpointMismatch(checkpoint_path, missing, shapes, unused) if missing or shapes else None


@contextlib.contextmanager
def restoring(checkpoint_path: str | None, own_saver: bool) -> Iterator[None]:
    """Restore the variables of the default graph in the body: when they are others, the error lists them.

    Args:
        checkpoint_path: the checkpoint; None: nothing is restored.
        own_saver: whether the saver is one of the user's, which may restore what it likes.

    Raises:
        CheckpointMismatch: the checkpoint lacks a variable, or has it in another shape.
    """
    difference = mismatch(checkpoint_path, tf.compat.v1.global_variables())
    if difference is not None and difference.shapes and not own_saver:
        # Restoring would give the variable the other shape, and the model that of another.
        raise difference
    try:
        yield
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        if difference is None:
            raise
        raise difference from error


def add_saver(config: RunConfig, scaffold: Any) -> None:
    """Add to the default graph the saver that `config` describes, unless the model_fn has made one."""
    key = tf.compat.v1.GraphKeys.SAVERS
    if scaffold.saver or tf.compat.v1.get_collection(key):
        return
    saver = tf.compat.v1.train.Saver(
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
    )
    tf.compat.v1.add_to_collection(key, saver)


@contextlib.contextmanager
def pinned(checkpoint_path: str) -> Iterator[str]:
    """Keep a checkpoint readable while it is in use, whatever the process that writes checkpoints deletes.

    Its files are hard-linked (copied where the file system has no links) into
    `eval-pins/<host>-<pid>-<number>/` next to them, and the prefix there is yielded; deleting the originals
    then harms nobody. The pins of processes that have died are swept. A checkpoint that is not on a local
    path is yielded as it is.

    Raises:
        FileNotFoundError: the checkpoint is not there (any more).
    """
    if "://" in checkpoint_path:
        yield checkpoint_path
        return
    prefix = Path(checkpoint_path)
    sweep_pins(prefix.parent)
    folder = prefix.parent / _PINS / f"{_host()}-{os.getpid()}-{next(_numbers)}"
    try:
        _link_all(prefix, folder)
        yield str(folder / prefix.name)
    finally:
        # The folder of all pins stays: another process may be about to make its own in it.
        shutil.rmtree(folder, ignore_errors=True)


def _link_all(prefix: Path, folder: Path) -> None:
    sources = [*sorted(prefix.parent.glob(f"{prefix.name}.data-*")), prefix.with_name(f"{prefix.name}.index")]
    if len(sources) == 1:
        raise FileNotFoundError(f"No checkpoint at {prefix}. It may have been deleted; take the latest one.")
    folder.mkdir(parents=True)
    for source in sources:
        try:
            os.link(source, folder / source.name)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"The checkpoint {prefix} was deleted just now: {source.name} is gone. Take the latest one."
            ) from error
        except OSError:
            shutil.copyfile(source, folder / source.name)


def sweep_pins(model_dir: str | os.PathLike[str]) -> None:
    """Remove the pins that processes of this machine left when they died."""
    for folder in Path(model_dir, _PINS).glob(f"{_host()}-*-*"):
        pid = int(folder.name.rsplit("-", 2)[1])
        if not _is_running(pid):
            shutil.rmtree(folder, ignore_errors=True)


def _host() -> str:
    return socket.gethostname()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def unpinned(checkpoint_path: str) -> str:
    """Return the path that a pinned checkpoint has in its model_dir; any other path as it is."""
    head, name = os.path.split(checkpoint_path)
    above, folder = os.path.split(head)
    if folder and os.path.basename(above) == _PINS:
        return os.path.join(os.path.dirname(above), name)
    return checkpoint_path
