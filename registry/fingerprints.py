"""Fingerprints of data sets: equal data, equal text. So one can tell what a model has seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def fingerprint_files(*paths: str | os.PathLike[str]) -> str:
    """Return the fingerprint of files and folders: of their content and their names below the given paths.

    Where they lie and when they were written does not matter.

    Raises:
        OSError: one cannot be read.
    """
    whole = hashlib.sha256()
    for path in map(Path, paths):
        for file in _files(path):
            name = file.name if file == path else file.relative_to(path).as_posix()
            _add(whole, name.encode(), _hash_of_file(file))
    return _told(whole)


def fingerprint_arrays(arrays: Mapping[str, Any]) -> str:
    """Return the fingerprint of NumPy arrays by name: of their dtypes, shapes and values.

    Raises:
        TypeError: one holds Python objects that are not text or bytes.
    """
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        _add(whole, f"{name} {array.dtype} {array.shape}".encode(), _hash_of_array(array))
    return _told(whole)


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def _hash_of_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _hash_of_array(array: Any) -> bytes:
    if array.dtype.hasobject:
        values = hashlib.sha256()
        for value in array.ravel().tolist():
            if not isinstance(value, str | bytes):
                raise TypeError(f"Cannot fingerprint {value!r}: give numbers, text or bytes.")
            _add(values, type(value).__name__.encode(), value.encode() if isinstance(value, str) else value)
        return values.digest()
    return hashlib.sha256(array.tobytes()).digest()


def _add(whole: Any, *parts: bytes) -> None:
    for part in parts:
        # With its length, so that two neighbours cannot be mistaken for others.
        whole.update(len(part).to_bytes(8, "big") + part)


def _told(whole: Any) -> str:
    return f"sha256:{whole.hexdigest()}"
