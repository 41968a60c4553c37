"""Which version a request reaches: the routes in effect, and the pure step towards what is wanted.

A label in the registry says what is wanted; a route says what serves. They differ while a version loads: a
route moves only to a version that is AVAILABLE, in one step, so that no request meets a version that cannot
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from registry import ServingTarget
from serving.errors import Code, NotFound, ServableNotFound, ServingError, UnknownLabel
from serving.runtime import States, VersionState

DEFAULT_LABEL = "production"
"""The label of a request that names neither a version nor a label."""


class ModelNotServed(ServableNotFound):
    """No model of this name has anything to serve."""

    def __init__(self, model: str, known: Sequence[str]) -> None:
        super().__init__(model, None, None)
        self.args = (model, tuple(known))
        self.known = tuple(known)

    def _remedy(self) -> str:
        return (
            f"Models served here: {', '.join(self.known) or 'none'}. "
            f"Publish a version of '{self.model}' and promote it to production, or ask for one of these."
        )


class VersionNotLoaded(ServableNotFound):
    """The model is served, but not this version of it. `error` is the loader's, if it was tried."""

    def __init__(self, model: str, version: int, available: Sequence[int], error: str = "") -> None:
        super().__init__(model, version, available)
        self.args = (model, version, tuple(available), error)
        self.error = error

    def _remedy(self) -> str:
        why = f" Loading version {self.version} failed: {self.error}." if self.error else ""
        return (
            f"Versions of model '{self.model}' loaded now: {_listed(self.available or ())}.{why} "
            f"Labelled versions are kept loaded: promote version {self.version} to a label, "
            "'canary' for instance, or ask for one of these."
        )


class NotInProduction(NotFound):
    """The request names neither version nor label, and the model has no production label."""

    def __init__(self, model: str, labels: Mapping[str, int], available: Sequence[int]) -> None:
        super().__init__(model, dict(labels), tuple(available))
        self.model, self.labels, self.available = model, dict(labels), tuple(available)

    def __str__(self) -> str:
        return (
            f"Model '{self.model}' has no '{DEFAULT_LABEL}' label, and the request names neither version nor "
            f"label. Promote a version to '{DEFAULT_LABEL}' first, or ask for a label "
            f"({_listed(sorted(self.labels))}) "
            f"or a loaded version ({_listed(self.available)})."
        )


class NotYetServing(ServingError):
    """What was asked for is wanted, but does not answer yet."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model, why)
        self.model, self.why = model, why

    def __str__(self) -> str:
        return f"Model '{self.model}' cannot answer yet: {self.why}. Try again."


@dataclass(frozen=True)
class ModelRoute:
    """The routes of one model."""

    labels: Mapping[str, int] = field(default_factory=dict)
    """Where each label points for requests, now."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Where the registry wants each label."""
    versions: Mapping[int, VersionState] = field(default_factory=dict)
    """What the runtime said last of each of its versions."""
    available: frozenset[int] = frozenset()
    """The versions that answer requests."""

    @property
    def answering(self) -> dict[str, int]:
        """The labels that are answered now, and by which version."""
        return {label: version for label, version in self.labels.items() if version in self.available}

    @property
    def settled(self) -> bool:
        """Whether every label points where it is wanted, at a version that answers."""
        return self.answering == self.wanted


@dataclass(frozen=True)
class Routes:
    """The routes of all models: replaced as a whole, never changed."""

    revision: int | None = None
    """The registry's revision that `wanted` was read at; None before the registry was first read."""
    models: Mapping[str, ModelRoute] = field(default_factory=dict)

    def resolve(self, model: str, version: int | None = None, label: str | None = None) -> int:
        """Return the version that serves the request.

        Raises:
            ModelNotServed, VersionNotLoaded, NotInProduction, UnknownLabel: nothing here goes by that name.
            NotYetServing: the label is known, but its version does not answer yet.
        """
        route = self.models.get(model)
        if route is None:
            raise self._unknown(model)
        found = route.labels.get(label or DEFAULT_LABEL) if version is None else version
        if found in route.available:
            return found  # type: ignore[return-value]  # `available` holds no None
        raise _unreachable(model, route, version, label)

    def check_model(self, model: str) -> None:
        """Raise ModelNotServed, or NotYetServing, if the model is not known."""
        if model not in self.models:
            raise self._unknown(model)

    def applied(self, revision: int, model: str | None = None) -> bool:
        """Return whether requests (for `model`, or all) are answered as was wanted at `revision`."""
        if self.revision is None or self.revision < revision:
            return False
        if model is not None:
            return model not in self.models or self.models[model].settled
        return all(route.settled for route in self.models.values())

    def _unknown(self, model: str) -> ServingError:
        if self.revision is None:
            return NotYetServing(model, "the gateway has not reached the registry since it started")
        return ModelNotServed(model, sorted(self.models))


def follow(targets: Sequence[ServingTarget], states: States, before: Routes, revision: int) -> Routes:
    """Return the routes after one look at the registry and the runtime.

    A label goes to the wanted version if that is available, and otherwise stays where it was. A label that
    the registry no longer has is gone.
    """
    models = {}
    for target in targets:
        versions = states.get(target.model, {})
        available = frozenset(number for number, state in versions.items() if state.available)
        old = before.models.get(target.model, ModelRoute()).labels
        wanted = dict(target.labels)
        labels = {
            label: version if version in available else old[label]
            for label, version in wanted.items()
            if version in available or label in old
        }
        models[target.model] = ModelRoute(labels, wanted, dict(versions), available)
    return Routes(revision, models)


def _unreachable(model: str, route: ModelRoute, version: int | None, label: str | None) -> ServingError:
    """Return the error of a request that found no available version."""
    loaded = sorted(route.available)
    if version is not None:
        state = route.versions.get(version)
        return VersionNotLoaded(model, version, loaded, state.error if state and state.failed else "")
    name = label or DEFAULT_LABEL
    if name in route.wanted:
        wanted = route.wanted[name]
        state = route.versions.get(wanted, VersionState("START"))
        how = f"failed to load ({state.error})" if state.failed else f"is loading (state {state.state})"
        return NotYetServing(model, f"version {wanted}, to which label '{name}' points, {how}")
    if label is None:
        return NotInProduction(model, route.wanted, loaded)
    return UnknownLabel(model, label, sorted(route.wanted))


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(str, names)) or "none"
