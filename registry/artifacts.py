"""The files of the versions, on anything fsspec speaks to: `<root>/<model>/<version>/saved_model.pb`.

A version is uploaded to `<root>/.pending/<model>/<version>` first, read back and compared with its manifest,
and only then moved into place: by one rename on a local disk. What counts is the database, though: a
directory whose version is not `ready` there does not exist for anyone, and `sweep` removes it. Nothing but
the model's own files is ever put into the final directory, for TensorFlow Serving loads it as it is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from registry.errors import ArtifactsUnavailable, InvalidInput, InvalidSavedModel, RegistryError
from registry.records import Damage, FileDigest

PENDING = ".pending"
"""The folder of uploads under way. No model's name begins with a dot, and TensorFlow Serving ignores it."""
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
CHUNK_BYTES = 1 << 20

Manifest = dict[str, FileDigest]


class CorruptUpload(OSError):
    """What was read back is not what was written."""


class ArtifactStore:
    """The directories of all versions below one root."""

    def __init__(self, root: str) -> None:
        """`root`: a local folder or an fsspec URL such as `s3://bucket/models` or `memory://models`.

        Raises:
            InvalidInput: fsspec knows no such protocol, or its package is not installed.
        """
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        try:
            # No cached listings: other processes write below the same root.
            self._files, path = url_to_fs(os.fspath(root), use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise InvalidInput(f"Cannot use {root!r} as the artifact root: {error}.") from error
        self._root = path.rstrip("/")
        self.is_local = isinstance(self._files, LocalFileSystem)

    @contextmanager
    def answering(self, model: str, version: int | None = None) -> Iterator[None]:
        """Turn whatever the store raises inside into ArtifactsUnavailable, which names the place.

        fsspec's many stores raise what they like: not only OSError.
        """
        try:
            yield
        except (RegistryError, CorruptUpload):
            raise
        except Exception as error:
            place = self.base_path(model) if version is None else self.uri(model, version)
            raise ArtifactsUnavailable(place, f"{type(error).__name__}: {error}") from error

    def base_path(self, model: str) -> str:
        """Return the directory whose sub-directories are the versions of `model`: a local path or a URL."""
        return self._shown(self._path(model))

    def uri(self, model: str, version: int) -> str:
        """Return the directory of one version: a local path or a URL."""
        return self._shown(self._path(model, str(version)))

    def has_saved_model(self, model: str, version: int) -> bool:
        """Return whether the version's SavedModel is in place."""
        return any(self._files.exists(self._path(model, str(version), name)) for name in SAVED_MODEL_FILES)

    def upload(self, directory: Path, model: str, version: int, progress: Callable[[], None]) -> Manifest:
        """Copy the files of `directory` to the pending place, and return their sizes and hashes.

        Args:
            directory: from `check_saved_model`.
            model: the model's name.
            version: the number allocated for it.
            progress: called at every chunk.

        Raises:
            OSError: a file cannot be read or written.
        """
        target = self._path(PENDING, model, str(version))
        self._remove(target)
        self._files.makedirs(target, exist_ok=True)
        manifest = {}
        for source in files_below(directory):
            name = source.relative_to(directory).as_posix()
            manifest[name] = self._copy(source, f"{target}/{name}", progress)
        return manifest

    def verify_upload(
        self, model: str, version: int, manifest: Manifest, progress: Callable[[], None]
    ) -> None:
        """Read the pending files back.

        Raises:
            CorruptUpload: a size or hash differs from the manifest, or files are missing or left over.
            OSError: a file cannot be read.
        """
        place = self._path(PENDING, model, str(version))
        found = self._sizes_below(place).keys()
        if found != manifest.keys():
            raise CorruptUpload(f"the store holds {sorted(found)}, uploaded were {sorted(manifest)}")
        for name, wanted in manifest.items():
            digest = self._hash(f"{place}/{name}", progress)
            if digest != wanted:
                raise CorruptUpload(f"{name} was written as {wanted} and read back as {digest}")

    def damages(
        self,
        model: str,
        version: int,
        manifest: Mapping[str, FileDigest],
        *,
        hashes_up_to_bytes: int | None = None,
    ) -> list[Damage]:
        """Compare the files in place with the manifest; return what differs, by name.

        Args:
            model: the model's name.
            version: a published version.
            manifest: of that version.
            hashes_up_to_bytes: files are read and hashed as long as all together are no more than this; None:
                always. With 0 only names and sizes are compared, in one listing.

        Raises:
            OSError: the store does not answer, or a file cannot be read.
        """
        place = self._path(model, str(version))
        found = self._sizes_below(place)
        self._check_readable(place, manifest.keys() - found.keys())
        total = sum(digest.size_bytes for digest in manifest.values())
        hashing = hashes_up_to_bytes is None or total <= hashes_up_to_bytes
        damages = []
        for name, wanted in manifest.items():
            if name not in found:
                damages.append(Damage(name, "missing", ""))
            elif found[name] != wanted.size_bytes:
                problem = "truncated" if found[name] < wanted.size_bytes else "changed"
                detail = f"{found[name]} bytes instead of {wanted.size_bytes}"
                damages.append(Damage(name, problem, detail))
            elif hashing and (problem := self._difference(f"{place}/{name}", wanted)):
                damages.append(
                    Damage(name, problem, "its SHA-256 is another" if problem == "changed" else "")
                )
        damages += [Damage(name, "extra", "not published") for name in found.keys() - manifest.keys()]
        return sorted(damages, key=lambda damage: damage.file)

    def download(self, model: str, version: int, manifest: Mapping[str, FileDigest], target: Path) -> None:
        """Copy the files of a version into `target`, an empty folder, and compare them with the manifest.

        Raises:
            CorruptUpload: a file is not as it was published.
            OSError: a file cannot be read or written.
        """
        place = self._path(model, str(version))
        for name, wanted in manifest.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._files.open(f"{place}/{name}", "rb") as file, path.open("wb") as out:
                digest = _digest(_copied(file, out, lambda: None))
            if digest != wanted:
                raise CorruptUpload(f"{name} was published as {wanted} and is {digest}")

    def install(self, model: str, version: int) -> None:
        """Move the pending files into place. Raises OSError when the store refuses."""
        pending, final = self._path(PENDING, model, str(version)), self._path(model, str(version))
        if self._files.exists(final):
            raise FileExistsError(f"{self._shown(final)} is there already, and is not this version")
        self._files.makedirs(self._path(model), exist_ok=True)
        if self.is_local:
            _sync_directories(pending)
            os.rename(pending, final)
            _sync(os.path.dirname(final))
        else:
            self._files.mv(pending, final, recursive=True)

    def remove(self, model: str, version: int, *, only_pending: bool = False) -> list[str]:
        """Remove what there is of the version, pending and in place; return the URIs of what was there."""
        places = self._places(model, version)[: 1 if only_pending else 2]
        return [self._shown(place) for place in places if self._remove(place)]

    def sizes(self, model: str, version: int) -> dict[str, int]:
        """Return how many bytes there are of the version, by URI: pending, in place, or both."""
        places = self._places(model, version)
        return {
            self._shown(place): sum(self._sizes_below(place).values())
            for place in places
            if self._files.exists(place)
        }

    def leftover_candidates(self, model: str) -> set[int]:
        """Return the numbers of all versions of `model` that have files, pending or in place."""
        return {
            int(name)
            for folder in (self._path(PENDING, model), self._path(model))
            for name in self._names(folder)
            if name.isascii() and name.isdigit() and name == str(int(name))
        }

    def _places(self, model: str, version: int) -> tuple[str, str]:
        """Return where the files of a version are while they are uploaded, and where they are then."""
        return self._path(PENDING, model, str(version)), self._path(model, str(version))

    def _sizes_below(self, place: str) -> dict[str, int]:
        """Return the size of each file below a folder, by its name there; of no folder, nothing."""
        found = self._files.find(place, detail=True)
        return {str(path)[len(place) + 1 :]: info["size"] for path, info in found.items()}

    def _check_readable(self, place: str, missing: Iterable[str]) -> None:
        """Raise what the store says when the folders of missing files cannot be read.

        To `find` of most stores what cannot be read is not there.
        """
        for folder in {f"{place}/{name}".rpartition("/")[0] for name in missing}:
            self._names(folder)

    def _difference(self, path: str, wanted: FileDigest) -> str:
        try:
            return "" if self._hash(path) == wanted else "changed"
        except FileNotFoundError:
            return "missing"  # Removed since it was listed.

    def _hash(self, path: str, progress: Callable[[], None] = lambda: None) -> FileDigest:
        with self._files.open(path, "rb") as file:
            return _digest(_chunks(file, progress))

    def _names(self, folder: str) -> list[str]:
        try:
            paths = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]

    def _copy(self, source: Path, target: str, progress: Callable[[], None]) -> FileDigest:
        self._files.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        with source.open("rb") as file, self._files.open(target, "wb") as out:
            digest = _digest(_copied(file, out, progress))
            if self.is_local:
                out.flush()
                os.fsync(out.fileno())
        return digest

    def _remove(self, path: str) -> bool:
        if not self._files.exists(path):
            return False
        try:
            self._files.rm(path, recursive=True)
        except FileNotFoundError:
            # Somebody else removes the same leftovers.
            return False
        return True

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def _shown(self, path: str) -> str:
        return path if self.is_local else self._files.unstrip_protocol(path)


def check_saved_model(directory: str | os.PathLike[str]) -> Path:
    """Return `directory` as a path.

    Raises:
        InvalidSavedModel: it has no saved_model.pb or saved_model.pbtxt with content, or contains linked
        directories.
    """
    path = Path(directory)
    try:
        problem = "" if path.is_dir() else "it is a file" if path.exists() else "there is no such directory"
    except OSError as error:
        problem = f"it cannot be looked at ({error.strerror})"
    if problem:
        raise InvalidSavedModel(str(directory), problem)
    heads = [path / name for name in SAVED_MODEL_FILES if (path / name).is_file()]
    if not heads:
        raise InvalidSavedModel(str(directory), "it contains no saved_model.pb")
    if not any(head.stat().st_size for head in heads):
        raise InvalidSavedModel(str(directory), f"its {heads[0].name} is empty")
    for _ in files_below(path):
        pass
    return path


def files_below(directory: Path) -> Iterator[Path]:
    """Yield every file below `directory`, in a fixed order.

    Raises:
        InvalidSavedModel: a directory in it is a link, or an entry is neither file nor directory.
    """
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):
                raise InvalidSavedModel(str(directory), f"the directory {name!r} in it is a link")
        for name in sorted(names):
            path = Path(folder, name)
            if not path.is_file():
                raise InvalidSavedModel(str(directory), f"{name!r} in it is no regular file")
            yield path


def _chunks(file: Any, progress: Callable[[], None]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        progress()
        yield chunk


def _copied(file: Any, out: Any, progress: Callable[[], None]) -> Iterator[bytes]:
    for chunk in _chunks(file, progress):
        out.write(chunk)
        yield chunk


def _digest(chunks: Iterator[bytes]) -> FileDigest:
    size, sha256 = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        sha256.update(chunk)
    return FileDigest(size, sha256.hexdigest())


def _sync_directories(path: str) -> None:
    for folder, _, _ in os.walk(path):
        _sync(folder)


def _sync(directory: str) -> None:
    """Make the entries of a local directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
