"""Bundles: the folder around a user's file as a tar.gz, made by a client and unpacked by a trainer.

Standard library only, because the client makes bundles and the client needs no server code.
"""

from __future__ import annotations

import errno
import functools
import gzip
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

__all__ = [
    "Bundle",
    "BundleError",
    "BundleTooLarge",
    "InvalidBundle",
    "Limits",
    "check_bundle",
    "make_bundle",
    "unpack_bundle",
]

SKIPPED_FOLDERS = ("__pycache__", "node_modules")
_BLOCK = 512
_CHUNK = 1 << 20
_LONGEST_NAME_BYTES = 255
"""Of a file or a folder, on every common file system."""
_FAULTS_OF_A_NAME = (
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
)


@dataclass(frozen=True)
class Limits:
    """What a bundle may hold. Code is small; data belongs in a package, a database or a shared folder."""

    file_bytes: int = 32 << 20
    """Largest file. `make_bundle` leaves larger ones out and says so; an archive with one is refused."""
    total_bytes: int = 128 << 20
    """All files together, unpacked."""
    files: int = 10_000
    """Number of files and folders."""


@dataclass(frozen=True)
class Bundle:
    """What `make_bundle` made."""

    data: bytes
    """The tar.gz."""
    entry: str
    """The user's file, relative to the root of the bundle."""
    files: tuple[str, ...]
    """Everything inside, sorted."""
    skipped: tuple[tuple[str, str], ...]
    """`(path, reason)` of files that a user may miss: too large, or links that leave the folder."""
    source_revision: str
    """The git commit of the folder, with `-dirty` when it had changes; empty outside of git."""


class BundleError(Exception):
    """A bundle cannot be made, or is refused."""


class InvalidBundle(BundleError):
    """The archive is not what a bundle must be: wrong format, or paths that leave it."""


class BundleTooLarge(BundleError):
    """The bundle, or a file in it, is over a limit."""


def make_bundle(file: str | os.PathLike[str], limits: Limits = Limits()) -> Bundle:
    """Return the folder around `file` as a tar.gz. The same files give the same bytes.

    Left out: hidden files and folders, `__pycache__`, `node_modules`, virtual environments, files over
    `limits.file_bytes`, links to outside the folder, and whatever is not a file.

    Raises:
        BundleError: `file` does not exist or is not a regular file.
        BundleTooLarge: `file` itself, all files together, or their number is over the limit.
    """
    path = Path(file).absolute()
    if not path.is_file():
        raise BundleError(f"Cannot bundle {str(file)!r}: there is no such file.")
    root = path.parent
    skipped: list[tuple[str, str]] = []
    files: list[str] = []
    total = 0
    for name in _walk(root, skipped):
        size = (root / name).stat().st_size
        if size > limits.file_bytes:
            reason = f"{_human(size)}, over the limit of {_human(limits.file_bytes)} a file"
            if name == path.name:
                raise BundleTooLarge(f"Cannot bundle {str(file)!r}: {reason}.")
            skipped.append((name, reason))
            continue
        files.append(name)
        total += size
        if total > limits.total_bytes or len(files) > limits.files:
            raise BundleTooLarge(
                f"Cannot bundle the folder {str(root)!r}: it holds more than {_human(limits.total_bytes)} or "
                f"{limits.files:,} files (stopped at {name!r}). "
                "Put the file in a folder of its own, with only the code it needs."
            )
    if path.name not in files:
        raise BundleError(f"Cannot bundle {str(file)!r}: hidden files are left out. Give it another name.")
    files.sort()
    return Bundle(_pack(root, files), path.name, tuple(files), tuple(skipped), _git_revision(root))


def check_bundle(archive: str | os.PathLike[str], entry: str, limits: Limits = Limits()) -> tuple[str, ...]:
    """Return the files in `archive` without writing any, when `unpack_bundle` would take it.

    Raises:
        InvalidBundle: not a tar.gz, a member that is not a plain file or folder inside it, no file `entry`.
        BundleTooLarge: it unpacks to more than the limits allow.
    """
    names: dict[str, None] = {}

    def note(member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        if content is not None:
            name = str(_inside(member.name))
            if name in names:
                raise InvalidBundle(f"The bundle holds {name!r} twice.")
            names[name] = None
            _copy(content, member, None)

    _visit(archive, limits, note)
    if entry not in names:
        raise InvalidBundle(
            f"The bundle has no file {entry!r}; it holds: {', '.join([*names][:20]) or 'nothing'}."
        )
    return tuple(names)


def unpack_bundle(
    archive: str | os.PathLike[str], into: str | os.PathLike[str], limits: Limits = Limits()
) -> None:
    """Unpack `archive` as the new folder `into`, whole or not at all.

    Raises:
        InvalidBundle: see `check_bundle`; also two members of one name.
        BundleTooLarge: see `check_bundle`.
        FileExistsError: `into` exists.
    """
    target = Path(into)
    if target.exists():
        raise FileExistsError(f"Cannot unpack into {str(target)!r}: it exists.")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _visit(archive, limits, functools.partial(_write, scratch))
        scratch.chmod(0o755)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch)
        raise


def _walk(root: Path, skipped: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the files that belong in a bundle, as POSIX paths relative to `root`."""
    real_root = root.resolve()
    for folder, subfolders, names in os.walk(root):
        here = Path(folder)
        subfolders[:] = sorted(name for name in subfolders if _wanted_folder(here / name))
        for name in sorted(names):
            path = here / name
            relative = path.relative_to(root).as_posix()
            if name.startswith(".") or name.endswith(".pyc"):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(real_root):
                skipped.append((relative, "a link that leaves the folder"))
            elif path.is_file():
                yield relative


def _wanted_folder(path: Path) -> bool:
    """Return whether to look into a folder; `pyvenv.cfg` is what makes one a virtual environment."""
    hidden = path.name.startswith(".") or path.name in SKIPPED_FOLDERS
    return not hidden and not path.is_symlink() and not (path / "pyvenv.cfg").exists()


def _pack(root: Path, files: list[str]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in files:
            content = (root / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if (root / name).stat().st_mode & stat.S_IXUSR else 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _git_revision(folder: Path) -> str:
    """Return the commit checked out in `folder`, or nothing: no git, or no checkout."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(folder)]
    head = subprocess.run([*command, "rev-parse", "--verify", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return ""
    changes = subprocess.run([*command, "status", "--porcelain", "."], capture_output=True, text=True)
    return head.stdout.strip() + ("-dirty" if changes.stdout.strip() else "")


class _LimitedReader(io.RawIOBase):
    """Reads a gzip stream up to a limit: tarfile reads extended headers, of any size, into memory."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        super().__init__()
        self._gzip = gzip.GzipFile(fileobj=stream, mode="rb")
        self._limit = limit
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes."""
        data = self._gzip.read(self._left + 1 if size < 0 else size)
        self._left -= len(data)
        if self._left < 0:
            raise BundleTooLarge(f"The bundle unpacks to more than {_human(self._limit)}.")
        return data


def _visit(
    archive: str | os.PathLike[str],
    limits: Limits,
    visit: Callable[[tarfile.TarInfo, IO[bytes] | None], None],
) -> None:
    """Call `visit` with every member and its content (None for folders), each checked against all rules."""
    count = total = 0
    try:
        with open(archive, "rb") as stream:
            # A header, padding and an extended header a member, at most.
            reader = _LimitedReader(stream, limits.total_bytes + limits.files * 4 * _BLOCK)
            with tarfile.open(fileobj=reader, mode="r|") as members:
                for member in members:
                    count += 1
                    total += member.size
                    _check_member(member, limits)
                    if count > limits.files or total > limits.total_bytes:
                        allowed = f"{_human(limits.total_bytes)} or {limits.files:,} files"
                        raise BundleTooLarge(f"The bundle holds more than {allowed}.")
                    visit(member, members.extractfile(member) if member.isreg() else None)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
        raise InvalidBundle(f"The bundle is not a whole tar.gz archive: {error}.") from error
    if count == 0:
        raise InvalidBundle("The bundle is empty.")


def _check_member(member: tarfile.TarInfo, limits: Limits) -> None:
    _inside(member.name)
    if not (member.isreg() or member.isdir()) or member.issparse() or member.size < 0:
        raise InvalidBundle(f"The bundle holds {member.name!r}, which is neither a plain file nor a folder.")
    if member.size > limits.file_bytes:
        raise BundleTooLarge(
            f"The bundle holds {member.name!r} of {_human(member.size)}; "
            f"the limit is {_human(limits.file_bytes)} a file."
        )


def _inside(name: str) -> PurePosixPath:
    """Return the member's path, which must stay in the folder it is unpacked into."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise InvalidBundle(f"The bundle holds {name!r}, which leads out of it.")
    if any(len(part.encode(errors="surrogateescape")) > _LONGEST_NAME_BYTES for part in path.parts):
        raise InvalidBundle(
            f"The bundle holds {name[:50]!r}..., a name longer than {_LONGEST_NAME_BYTES} bytes."
        )
    return path


def _write(root: Path, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
    # `root` is a new folder that holds no links, so a relative path without `..` stays in it.
    path = root / _inside(member.name)
    try:
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as target:
            _copy(content, member, target)
    except OSError as error:
        if error.errno not in _FAULTS_OF_A_NAME:
            raise  # A full disk, for one: no fault of the bundle.
        raise InvalidBundle(f"Cannot unpack {member.name!r} of the bundle: {error.strerror}.") from error
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def _copy(content: IO[bytes], member: tarfile.TarInfo, target: IO[bytes] | None) -> None:
    """Read all of a member, to `target` if given; a short one means that the archive was cut off."""
    size = 0
    while chunk := content.read(_CHUNK):
        size += len(chunk)
        if target is not None:
            target.write(chunk)
    if size != member.size:
        raise InvalidBundle(f"The bundle ends in the middle of {member.name!r}.")


def _human(size: int) -> str:
    """Return a number of bytes as people write it, for example `1.5 MB`."""
    if size < 1 << 10:
        return f"{size} bytes"
    return f"{size / (1 << 10):.0f} KB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MB"
