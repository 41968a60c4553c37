"""Which versions should be loaded, and what to do next to get there. Pure: no clock, no threads, no files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path


class State(IntEnum):
    """The states of a version, in this order, numbered as in GetModelStatusResponse."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class Latest:
    """Serve the `count` highest version numbers; 0 counts as 1."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """Serve every version there is."""


@dataclass(frozen=True, slots=True)
class Specific:
    """Serve these version numbers, those of them that exist."""

    versions: tuple[int, ...]


Policy = Latest | All | Specific


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model to serve: the folder of its version folders, which versions, and what labels name them."""

    name: str
    base_path: str | Path
    policy: Policy = field(default_factory=Latest)
    labels: Mapping[str, int] = field(default_factory=dict)


def aspired(policy: Policy, found: Collection[int]) -> set[int]:
    """Return the versions that should be loaded, of those found under the base path."""
    match policy:
        case All():
            return set(found)
        case Specific(versions):
            return set(versions) & set(found)
        case Latest(count):
            return set(sorted(found, reverse=True)[: max(count, 1)])


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """What the decision needs to know of one version.

    `due` is false while a failed load waits for its next try.
    """

    version: int
    state: State
    aspired: bool
    due: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """Load this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Take this version out of service, let its requests end, and free it."""

    version: int


def next_action(versions: Sequence[VersionSnapshot]) -> Load | Unload | None:
    """Return the one step that brings the loaded versions closer to the aspired ones, or None when there is
    none.

    Availability is preserved: aspired versions are loaded first, the highest number first; a version that is
    no longer aspired is unloaded, the lowest first, only when an aspired one is available or nothing is
    aspired any more. So when the new version fails to load, the old one goes on serving.

    References:
        TensorFlow Serving, core/availability_preserving_policy.h.
    """
    to_load = [v.version for v in versions if v.aspired and v.due and v.state in (State.START, State.LOADING)]
    if to_load:
        return Load(max(to_load))
    unaspired = [v.version for v in versions if not v.aspired and v.state is State.AVAILABLE]
    if unaspired and _replaced(versions):
        return Unload(min(unaspired))
    return None


def _replaced(versions: Sequence[VersionSnapshot]) -> bool:
    aspired_states = [v.state for v in versions if v.aspired]
    return not aspired_states or State.AVAILABLE in aspired_states
