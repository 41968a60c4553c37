"""What every process of the appliance checks before it starts: a bad start ends with one clear line."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.settings import Settings


class StartError(Exception):
    """The process cannot start; `str()` is one line that says why and what to do."""


def check_folder(path: Path, setting: str) -> None:
    """Make the folder `path` if need be, and see that it can be written; `setting` is what names it.

    Raises:
        StartError: it cannot; the message names the setting.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise StartError(
            f"Cannot write to the folder {str(path)!r}: {error.strerror}. Set {setting}."
        ) from error


def check_folders(settings: Settings) -> None:
    """Check every local folder of the settings."""
    check_folder(settings.home, "APPLIANCE_HOME")
    check_folder(settings.jobs_root, "APPLIANCE_JOBS_ROOT")
    if "://" not in settings.artifact_root:
        check_folder(Path(settings.artifact_root), "APPLIANCE_ARTIFACT_ROOT")


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Return a TCP socket bound to `host` and `port` (0: a free one); `setting` is what names the port.

    Raises:
        StartError: the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = f"Stop what uses the port, or set {setting}" if taken else "Set APPLIANCE_HOST"
        raise StartError(f"Cannot listen on {host}:{port}: {error.strerror}. {remedy}.") from error
    return bound


def check_ports(settings: Settings) -> None:
    """See that both ports are free."""
    bind(settings.host, settings.rest_port, "APPLIANCE_REST_PORT").close()
    bind(settings.host, settings.grpc_port, "APPLIANCE_GRPC_PORT").close()


def check_database(settings: Settings) -> None:
    """See that the database can be used, making the registry's tables in an empty one.

    Raises:
        registry.errors.DatabaseError: it cannot.
        registry.errors.InvalidInput: its URL, or the artifact root, cannot be read.
    """
    import registry

    registry.Registry(settings.database_url, settings.artifact_root, migrate=False).close()


def holder(home: Path) -> int | None:
    """Return the process that holds the lock of the folder `home`, or None."""
    try:
        with (home / "appliance.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0) or None
    except FileNotFoundError:
        return None
    return None


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the lock of the folder `home`, so that no second appliance runs on it.

    Raises:
        StartError: another process holds it.
    """
    path = home / "appliance.lock"
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise StartError(
                f"An appliance is already running on {str(home)!r} (process {lock.read().strip() or '?'}). "
                "Stop it, or give another folder with --home."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
