"""What runs the models: the seam between the reconciler and a model server, and the embedded one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving import heap
from serving.errors import NoVersions
from serving.manager import ModelConfig, ModelManager, Specific


class RuntimeUnavailable(ConnectionError):
    """The runtime cannot be reached; what it has loaded is not known."""


@dataclass(frozen=True)
class VersionState:
    """What the runtime says of one version: TensorFlow Serving's states, and the loader's error, if any."""

    state: str
    error: str = ""

    @property
    def available(self) -> bool:
        """Whether it answers requests."""
        return self.state == "AVAILABLE"

    @property
    def failed(self) -> bool:
        """Whether loading it ended with an error."""
        return self.state == "END" and bool(self.error)


States = Mapping[str, Mapping[int, VersionState]]
"""By model, then by version."""


@dataclass(frozen=True)
class Load:
    """What the runtime is asked to have of one model."""

    name: str
    base_path: str
    versions: tuple[int, ...]
    labels: Mapping[str, int] = field(default_factory=dict)
    """Where the labels point in effect: at available versions only."""


class Runtime(Protocol):
    """Something that loads and runs models. One reconciler drives it, from one thread."""

    kind: str
    """A word for reports: `embedded`, `sidecar`."""

    def states(self, models: Iterable[str]) -> States:
        """Return the state of each version of these models that the runtime knows.

        A failure from before the version was last asked for is no longer one: it is given as START.

        Raises:
            RuntimeUnavailable: it does not answer.
        """

    def apply(self, loads: Sequence[Load]) -> None:
        """Ask the runtime to have exactly these loaded; do not wait. Asking again for the same is free.

        A failed version is tried again after a call that does not name it.

        Raises:
            RuntimeUnavailable: it does not answer.
        """

    def close(self) -> None:
        """Let go of the runtime."""


STALE_SECONDS = 5.0
"""How long an END that was there before a version was asked for again is taken for old news."""


class StaleEnds:
    """Tells the END of a load that was asked for from an older one that is still listed.

    An ended version stays listed, with its error, until the runtime gets round to loading it again, and a
    load that fails at once may never be seen LOADING. So an END from before counts again only after a while.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, int], float] = {}

    def asked(self, before: Sequence[Load], now: Sequence[Load], seen: States) -> None:
        """Take note of versions that are asked for now and were not before, given what is seen of them."""
        known = {(load.name, version) for load in before for version in load.versions}
        for load in now:
            for version in load.versions:
                state = seen.get(load.name, {}).get(version)
                if state is not None and state.state == "END" and (load.name, version) not in known:
                    self._until[load.name, version] = time.monotonic() + STALE_SECONDS

    def judge(self, model: str, version: int, state: VersionState) -> VersionState:
        """Return the state, or START if it is an END from before."""
        if state.state != "END":
            self._until.pop((model, version), None)
        elif time.monotonic() < self._until.get((model, version), 0.0):
            return VersionState("START")
        return state


class EmbeddedRuntime:
    """Runs the models in this process.

    Args:
        manager: by default one that tries a failing load once more after a second, and then says so.
    """

    kind = "embedded"

    def __init__(self, manager: ModelManager | None = None) -> None:
        heap.keep_freed()
        self.manager = manager or ModelManager(max_load_retries=1, load_retry_seconds=1.0)
        self._applied: list[Load] = []
        self._states: dict[str, dict[int, VersionState]] = {}
        self._stale = StaleEnds()

    def states(self, models: Iterable[str]) -> States:
        """Return what the manager says."""
        self._states = {model: self._versions(model) for model in models}
        return self._states

    def apply(self, loads: Sequence[Load]) -> None:
        """Hand the wanted versions to the manager. Labels stay with the gateway's routes."""
        wanted = list(loads)
        if wanted == self._applied:
            return
        self._stale.asked(self._applied, wanted, self._states)
        self.manager.apply(
            [ModelConfig(load.name, load.base_path, Specific(load.versions)) for load in wanted]
        )
        self._applied = wanted

    def close(self) -> None:
        """Unload everything, when the requests in flight have ended."""
        self.manager.close()

    def _versions(self, model: str) -> dict[int, VersionState]:
        try:
            statuses = self.manager.status(model)
        except NoVersions:
            return {}
        return {
            status.version: self._stale.judge(
                model, status.version, VersionState(status.state.name, status.error_message)
            )
            for status in statuses
        }
