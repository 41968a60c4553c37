"""What lists return: pages of summaries, free of whatever may be long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list."""

    items: tuple[T, ...]
    next_cursor: str
    """Where the next page begins; empty on the last one."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class ModelSummary:
    """A model with its labels."""

    name: str
    description: str
    tags: Mapping[str, str]
    created_at: datetime
    labels: Mapping[str, int]
    newest_version: int
    """The highest number given out, whatever became of it; 0: none yet."""


@dataclass(frozen=True)
class VersionSummary:
    """A version without manifest and signatures, which `Registry.version` has."""

    model: str
    version: int
    state: str
    uri: str
    size_bytes: int
    metrics: Mapping[str, float]
    params: Mapping[str, Any]
    step: int | None
    job: str
    source_revision: str
    tags: Mapping[str, str]
    description: str
    created_at: datetime
    ready_at: datetime | None
    error: str
    labels: tuple[str, ...]
