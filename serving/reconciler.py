"""Drives a runtime to what the registry wants, and moves the routes when a version answers.

Level-triggered: each step compares what is wanted with what is, and takes the next action. Nothing depends on
having seen an event, so the registry, the runtime and this process may each restart at any time, in any
order, and it converges.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from registry import ModelState, Registry, ServingReport, ServingTarget
from registry.errors import ArtifactsUnavailable, Conflict, DatabaseError, NotFound, UndoRefused
from serving.failed_versions import FailedVersions
from serving.routing import ModelRoute, Routes, follow
from serving.runtime import Load, Runtime, RuntimeUnavailable, States, VersionState

log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0
"""How long a version that nothing names any more stays loaded, for requests just routed to it."""
LOAD_TIMEOUT_SECONDS = 600.0
"""How long a version may take to become available before its promotion counts as failed."""
LOOK_WAIT_SECONDS = 0.5
"""How long a settled runtime goes without being looked at."""
REPORT_WAIT_SECONDS = 10.0
"""How often an unchanged state is reported again, as a sign of life."""
BACKOFF_SECONDS = 2.0
"""The longest pause between two attempts to reach a registry or a runtime that does not answer."""


class Reconciler:
    """The loop between one registry and one runtime, in a thread of its own.

    Args:
        registry: where what is wanted is read, and what serves is reported.
        runtime: what is driven.
        name: this gateway's name in the reports; the same one after a restart.
        poll_wait_seconds: how long between two looks at the registry's revision.
        in_flight: returns the versions, by model, that requests are on their way to; they stay loaded.
        on_change: called from the reconciler's thread after `routes` or `problems` have changed.
    """

    def __init__(
        self,
        registry: Registry,
        runtime: Runtime,
        *,
        name: str,
        poll_wait_seconds: float = 0.05,
        in_flight: Callable[[], Iterable[tuple[str, int]]] = tuple,
        on_change: Callable[[], None] = lambda: None,
        linger_seconds: float = LINGER_SECONDS,
        load_timeout_seconds: float = LOAD_TIMEOUT_SECONDS,
    ) -> None:
        self.routes = Routes()
        self._registry, self._runtime, self._name = registry, runtime, name
        self._poll_wait_seconds = poll_wait_seconds
        self._in_flight, self._on_change = in_flight, on_change
        self._linger_seconds, self._load_timeout_seconds = linger_seconds, load_timeout_seconds
        self._woken, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._revision: int | None = None
        self._targets: Sequence[ServingTarget] = ()
        self._loads: dict[str, Load] = {}
        self._needed_at: dict[tuple[str, int], float] = {}
        self._asked_at: dict[tuple[str, int], float] = {}
        self._failed = FailedVersions()
        self._damaged: dict[tuple[str, int], str] = {}
        self._proven: set[int] = set()
        self._before: dict[str, ModelRoute] = {}
        self._look_due, self._suspicious = 0.0, False
        self._reported: tuple[int, Mapping[str, ModelState]] | None = None
        self._reported_at = 0.0
        self.problems: dict[str, str] = {}

    # The thread.

    def start(self) -> None:
        """Start the loop."""
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop and wait for it. The runtime keeps what it has."""
        self._stopping.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def wake(self) -> None:
        """Look at the registry now, without waiting for the next poll."""
        self._suspicious = True
        self._woken.set()

    def look_soon(self) -> None:
        """Look at the runtime at the next poll: a request has met something unexpected there."""
        self._suspicious = True

    def _run(self) -> None:
        pause = self._poll_wait_seconds
        while not self._stopping.is_set():
            try:
                self.step()
                pause = self._poll_wait_seconds
            except (DatabaseError, RuntimeUnavailable):
                pause = min(2 * pause, BACKOFF_SECONDS)
            except Exception as error:  # noqa: BLE001  # a fault in one step must not end the loop that heals faults
                self._trouble("reconciler", f"{type(error).__name__}: {error}", error)
                pause = min(2 * pause, BACKOFF_SECONDS)
            self._woken.wait(pause)
            self._woken.clear()

    # One step.

    def step(self) -> None:
        """Compare once, act once.

        Raises:
            DatabaseError: the registry's database cannot be used; the runtime was driven all the same.
            RuntimeUnavailable: the runtime does not answer; the routes stay.
        """
        unreachable = self._read_registry()
        if self._revision is not None:
            self._drive()
        if unreachable is not None:
            raise unreachable
        if self._revision is not None:
            self._undo_failed()
            self._report()
        self._recovered("reconciler")

    def _read_registry(self) -> DatabaseError | None:
        try:
            revision = self._registry.revision()
            if revision != self._revision:
                targets = self._registry.serving_targets()
                if self._revision is None:
                    self._remember(targets, self._registry.serving_reports())
                self._begin_anew(targets)
                self._targets, self._revision, self._look_due = targets, revision, 0.0
        except DatabaseError as error:
            self._trouble("registry", str(error))
            return error
        self._recovered("registry")
        return None

    def _remember(self, targets: Sequence[ServingTarget], reports: Sequence[ServingReport]) -> None:
        """Take up, from the reports, where this gateway was before it restarted.

        A label whose wanted version is still loading goes on being answered by the version before; and a
        promotion that has served on any gateway is not undone by this one.
        """
        known = {target.model for target in targets}
        for report in sorted(reports, key=lambda report: (report.gateway == self._name, report.at)):
            for model, state in report.states.items():
                if model in known:
                    self._before[model] = ModelRoute({**state.routes})
        served = {
            (model, label, version)
            for report in reports
            for model, state in report.states.items()
            for label, version in state.routes.items()
        }
        self._proven = {
            target.promotions[label]
            for target in targets
            for label, version in target.labels.items()
            if (target.model, label, version) in served
        }

    def _begin_anew(self, targets: Sequence[ServingTarget]) -> None:
        """Forget the failures of versions that are promoted again: each promotion gets a try of its own."""
        known = {promotion for target in self._targets for promotion in target.promotions.values()}
        for target in targets:
            for label, version in target.labels.items():
                if target.promotions[label] not in known:
                    self._failed.forget((target.model, version))
                    self._asked_at.pop((target.model, version), None)

    def _drive(self) -> None:
        now = time.monotonic()
        if now < self._look_due and not self._suspicious:
            return
        self._suspicious = False
        try:
            states = self._with_damaged(
                self._runtime.states({*self._loads, *(target.model for target in self._targets)})
            )
            self._move_routes(states)
            self._choose_loads(states, now)
            self._runtime.apply(list(self._loads.values()))
        except RuntimeUnavailable as error:
            self._asked_at.clear()  # a load cannot be late in a runtime that is away
            self._trouble("runtime", str(error))
            raise
        self._recovered("runtime")
        self._look_due = now + (LOOK_WAIT_SECONDS if self._settled(states) else 0.0)

    def _move_routes(self, states: States) -> None:
        assert self._revision is not None
        before = self.routes if self.routes.revision is not None else Routes(models=self._before)
        routes = follow(self._targets, states, before, self._revision)
        if routes == self.routes:
            return
        self.routes = routes  # one assignment: from here on every request goes the new way
        for target in self._targets:
            route, old = routes.models[target.model], before.models.get(target.model, ModelRoute()).labels
            for label, version in route.labels.items():
                if route.answering.get(label) == target.labels[label]:
                    self._proven.add(target.promotions[label])
                if old.get(label) != version:
                    fields = {
                        "model": target.model,
                        "label": label,
                        "version": version,
                        "before": old.get(label),
                    }
                    log.info("route_moved", extra=fields)
        self._on_change()

    def _choose_loads(self, states: States, now: float) -> None:
        """Set what the runtime is to have: the wanted, the routed, and what was either until a moment ago."""
        paths = {name: load.base_path for name, load in self._loads.items()}
        needed = set(self._in_flight())
        for target in self._targets:
            paths[target.model] = target.base_path
            routed = self.routes.models[target.model].labels.values()
            needed |= {(target.model, version) for version in (*target.versions, *routed)}
        self._needed_at |= dict.fromkeys(needed, now)
        self._needed_at = {
            key: at
            for key, at in self._needed_at.items()
            if at == now or (now - at <= self._linger_seconds and _state(states, *key).available)
        }
        self._rest_failed(states, now)
        loaded: dict[str, list[int]] = {}
        for model, version in sorted(self._needed_at):
            may_be_tried = self._failed.may_be_tried((model, version), now)
            if model in paths and may_be_tried and self._sound(states, model, version):
                loaded.setdefault(model, []).append(version)
                self._asked_at.setdefault((model, version), now)
        self._asked_at = {key: at for key, at in self._asked_at.items() if key[1] in loaded.get(key[0], ())}
        self._loads = {
            model: Load(model, paths[model], tuple(versions), self._labels(model, versions))
            for model, versions in loaded.items()
        }

    def _sound(self, states: States, model: str, version: int) -> bool:
        """Compare the files with what was published, before the version is asked for; a damaged one rests."""
        key = (model, version)
        if key in self._asked_at or _state(states, model, version).available:
            return True
        try:
            damages = self._registry.damages(model, version)
        except DatabaseError:
            return False  # Looked at again in the next step; what is loaded already stays.
        except (ArtifactsUnavailable, Conflict, NotFound) as error:
            # The store does not answer, or the version has just been deleted: the runtime will say the same.
            log.info("files_not_checked", extra={"model": model, "version": version, "error": str(error)})
            damages = []
        if not damages:
            self._damaged.pop(key, None)
            return True
        error_text = f"its files are damaged: {'; '.join(map(str, damages))}"
        log.error("version_damaged", extra={"model": model, "version": version, "error": error_text})
        self._failed.add(key, error_text, time.monotonic())
        self._damaged[key] = error_text
        return False

    def _with_damaged(self, states: States) -> States:
        """Return the states with the versions that were not asked for because their files are damaged."""
        shown = {model: dict(versions) for model, versions in states.items()}
        for (model, version), error in self._damaged.items():
            if not _state(states, model, version).available:
                shown.setdefault(model, {})[version] = VersionState("END", error)
        return shown

    def _labels(self, model: str, versions: Sequence[int]) -> dict[str, int]:
        answering = self.routes.models.get(model, ModelRoute()).answering
        return {label: version for label, version in answering.items() if version in versions}

    # Versions that will not load.

    def _failure(self, model: str, version: int) -> str:
        """Return why a wanted version does not load; empty while it still may."""
        if version in self.routes.models[model].available:
            return ""
        if (model, version) in self._failed:
            return self._failed.error((model, version))
        asked_at = self._asked_at.get((model, version))
        if asked_at is not None and time.monotonic() - asked_at > self._load_timeout_seconds:
            return f"it did not become available within {self._load_timeout_seconds:g} s"
        return ""

    def _undo_failed(self) -> None:
        """Undo each promotion whose version will not load; one that has served before is tried again."""
        for target in self._targets:
            for label, version in target.labels.items():
                error = self._failure(target.model, version)
                if not error or target.promotions[label] in self._proven:
                    continue
                reason = f"version {version} would not load on {self._name}: {error}"
                try:
                    self._registry.undo_promotion(target.promotions[label], reason)
                except (UndoRefused, NotFound) as refused:
                    log.info(
                        "undo_refused", extra={"model": target.model, "label": label, "error": str(refused)}
                    )
                else:
                    fields = {"model": target.model, "label": label, "version": version, "error": error}
                    log.warning("promotion_undone", extra=fields)
                    self.wake()

    def _rest_failed(self, states: States, now: float) -> None:
        """Leave failed versions out for a while: a runtime tries again only what was left out."""
        self._failed.keep_only(self._needed_at)
        self._damaged = {key: error for key, error in self._damaged.items() if key in self._failed}
        for key in self._needed_at:
            state = _state(states, *key)
            if state.available:
                self._failed.forget(key)
            elif state.failed and key in self._asked_at:
                self._failed.add(key, state.error, now)

    # What others are told.

    def _settled(self, states: States) -> bool:
        """Return whether the runtime has what it was asked for, and nothing is waited for."""
        asked = {(load.name, version) for load in self._loads.values() for version in load.versions}
        there = {
            (model, v)
            for model, versions in states.items()
            for v, state in versions.items()
            if state.available
        }
        return asked == there and all(r.settled for r in self.routes.models.values())

    def _report(self) -> None:
        states = {
            model: ModelState(
                routes=route.answering,
                versions={version: state.state for version, state in route.versions.items()},
                errors={version: state.error for version, state in route.versions.items() if state.error},
            )
            for model, route in self.routes.models.items()
        }
        assert self._revision is not None
        now = time.monotonic()
        if self._reported == (self._revision, states) and now - self._reported_at < REPORT_WAIT_SECONDS:
            return
        self._registry.report_serving(self._name, self._revision, states)
        self._reported, self._reported_at = (self._revision, states), now

    @property
    def serving(self) -> bool:
        """Whether requests can be answered: the registry was read once, and the runtime is there."""
        return self.routes.revision is not None and "runtime" not in self.problems

    def state(self) -> dict[str, Any]:
        """Return, as plain values, what serves and what is wrong."""
        routes = self.routes
        return {
            "name": self._name,
            "runtime": self._runtime.kind,
            "healthy": not self.problems and routes.revision is not None,
            "problems": dict(self.problems),
            "revision": routes.revision,
            "settled": all(route.settled for route in routes.models.values()),
            "models": {
                model: {
                    "routes": route.answering,
                    "labels": dict(route.wanted),
                    "versions": {
                        version: {"state": state.state, "error": state.error}
                        for version, state in sorted(route.versions.items())
                    },
                }
                for model, route in sorted(routes.models.items())
            },
        }

    def _trouble(self, what: str, problem: str, error: Exception | None = None) -> None:
        if self.problems.get(what) != problem:
            log.error("trouble", extra={"part": what, "problem": problem}, exc_info=error)
            self.problems = {**self.problems, what: problem}
            self._on_change()

    def _recovered(self, what: str) -> None:
        if what in self.problems:
            log.info("recovered", extra={"part": what})
            self.problems = {name: problem for name, problem in self.problems.items() if name != what}
            self._on_change()


def _state(states: States, model: str, version: int) -> VersionState:
    """Return what the runtime says of a version; START if it has not heard of it."""
    return states.get(model, {}).get(version, VersionState("START"))
