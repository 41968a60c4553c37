"""What every group of the registry's operations works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from registry import database
from registry.artifacts import ArtifactStore

T = TypeVar("T")


class Operations:
    """One database and one artifact root."""

    _engine: Engine
    _store: ArtifactStore

    def _read(self, work: Callable[[Session], T]) -> T:
        return database.read(self._engine, work)

    def _write(self, work: Callable[[Session], T]) -> T:
        return database.write(self._engine, work)
