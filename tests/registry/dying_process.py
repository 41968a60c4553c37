"""A process that is killed at a step of an operation: `python -m ... STEP URL ROOT DIR`.

Each step names a function of the product that the process, instead of calling it, does not survive.
"""

import os
import signal
import sys
from typing import Any, NoReturn

from registry import Registry, labels, versions
from registry.artifacts import ArtifactStore


def die(*_arguments: Any, **_options: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")


def die_at_the_second_file() -> None:
    copy = ArtifactStore._copy

    def copy_once(self: ArtifactStore, *arguments: Any) -> Any:
        ArtifactStore._copy = die
        return copy(self, *arguments)

    ArtifactStore._copy = copy_once


PUBLISHING = {
    "before the number is committed": lambda: setattr(versions, "now", die),
    "before the first file": lambda: setattr(ArtifactStore, "_copy", die),
    "between two files": die_at_the_second_file,
    "before the files are verified": lambda: setattr(ArtifactStore, "verify_upload", die),
    "before the files are in place": lambda: setattr(ArtifactStore, "install", die),
    "before the version is ready": lambda: setattr(versions, "finish", die),
    "before the ready version is committed": lambda: setattr(versions, "to_version", die),
}
OTHERS = {
    "before a move is committed": lambda: setattr(labels, "count_up", die),
    "before the files of a deleted version are removed": lambda: setattr(ArtifactStore, "remove", die),
    "before the swept files are removed": lambda: setattr(versions, "without_files", die),
}


def main(step: str, database_url: str, root: str, directory: str) -> None:
    with Registry(database_url, root) as registry:
        {**PUBLISHING, **OTHERS}[step]()
        if step in PUBLISHING:
            registry.publish("census", directory)
        elif step == "before a move is committed":
            registry.promote("census", 2, actor="eve")
        elif step == "before the files of a deleted version are removed":
            registry.delete_version("census", 2, actor="eve")
        else:
            registry.sweep(older_than_seconds=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
