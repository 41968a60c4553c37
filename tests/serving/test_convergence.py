"""Whatever is promoted, fails, restarts, in whatever order: in the end what serves is what is wanted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from registry import Registry
from registry.errors import RollbackRefused
from serving import failed_versions
from serving.reconciler import Reconciler
from serving.runtime import Load, RuntimeUnavailable, States, VersionState

CORRUPT = 4
LABELS = ("production", "canary")
TEMPLATE = Path()
"""A folder with a registry that each example begins with a copy of; set by the test."""


class SimulatedRuntime:
    """Loads one version at a time when told to get on; forgets everything in a restart."""

    kind = "simulated"

    def __init__(self) -> None:
        self.versions: dict[int, VersionState] = {}
        self.asked: set[int] = set()
        self.up = True

    def states(self, models: Iterable[str]) -> States:
        self._check()
        return {"census": dict(self.versions)}

    def apply(self, loads: Sequence[Load]) -> None:
        self._check()
        asked = {version for entry in loads for version in entry.versions}
        for version in asked - self.asked:
            if not self.versions.get(version, VersionState("END")).available:
                self.versions[version] = VersionState("START")
        for version in self.asked - asked:
            if not self.versions[version].failed:
                self.versions[version] = VersionState("END")
        self.asked = asked

    def get_on(self) -> bool:
        """Finish one load, if there is one to do."""
        waiting = [version for version in self.asked if self.versions[version].state == "START"]
        if not waiting:
            return False
        state = VersionState("END", "corrupt") if waiting[0] == CORRUPT else VersionState("AVAILABLE")
        self.versions[waiting[0]] = state
        return True

    def restart(self) -> None:
        self.versions, self.asked = {}, set()

    def close(self) -> None:
        self.up = False

    def _check(self) -> None:
        if not self.up:
            raise RuntimeUnavailable("It is away.")


class ServingMachine(RuleBasedStateMachine):
    """Versions 1 to 3 load, version 4 does not."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(TEMPLATE / "registry.db", self.folder)
        self.registry = Registry(f"sqlite:///{self.folder}/registry.db", TEMPLATE / "models")
        self.runtime = SimulatedRuntime()
        self.restart_gateway()

    def teardown(self) -> None:
        self.runtime.up = True
        for _ in range(30):
            self.step()
            self.runtime.get_on()
        self.step()
        labels = self.registry.labels("census")
        assert CORRUPT not in labels.values()
        assert self.reconciler.routes.models["census"].answering == labels
        assert self.reconciler.routes.applied(self.registry.revision())
        (target,) = self.registry.serving_targets()
        assert self.runtime.asked - {CORRUPT} == set(target.versions) - {CORRUPT}
        self.registry.close()
        shutil.rmtree(self.folder)

    @rule(version=st.integers(1, CORRUPT), label=st.sampled_from(LABELS))
    def promote(self, version: int, label: str) -> None:
        self.registry.promote("census", version, label=label, actor="test")

    @rule(label=st.sampled_from(LABELS))
    def roll_back(self, label: str) -> None:
        if label in self.registry.labels("census"):
            try:
                self.registry.rollback("census", label=label, actor="test")
            except RollbackRefused:
                hypothesis.event("nothing to roll back to")

    @rule(label=st.sampled_from(LABELS))
    def remove(self, label: str) -> None:
        if label in self.registry.labels("census"):
            self.registry.remove_label("census", label, actor="test")

    @rule()
    def step(self) -> None:
        self.reconciler.look_soon()
        try:
            self.reconciler.step()
        except RuntimeUnavailable:
            hypothesis.event("the runtime is away")

    @rule()
    def get_on(self) -> None:
        self.runtime.get_on()

    @precondition(lambda self: self.runtime.up)
    @rule()
    def lose_the_runtime(self) -> None:
        self.runtime.up = False

    @precondition(lambda self: not self.runtime.up)
    @rule()
    def restart_the_runtime(self) -> None:
        self.runtime.restart()
        self.runtime.up = True

    @rule()
    def restart_gateway(self) -> None:
        self.reconciler = Reconciler(self.registry, self.runtime, name="gateway", linger_seconds=0.0)

    @invariant()
    def a_label_is_never_answered_by_what_does_not_load(self) -> None:
        for route in self.reconciler.routes.models.values():
            assert CORRUPT not in route.labels.values()


def test_it_converges(monkeypatch, tmp_path):
    monkeypatch.setattr(failed_versions, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr("tests.serving.test_convergence.TEMPLATE", tmp_path)
    directory = tmp_path / "saved"
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(b"graph")
    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path / "models") as registry:
        registry.create_model("census")
        for _ in range(CORRUPT):
            registry.publish("census", directory)
    # Shrinking would take minutes, as each step writes to a real database.
    phases = set(hypothesis.Phase) - {hypothesis.Phase.shrink, hypothesis.Phase.explain}
    settings = hypothesis.settings(max_examples=40, stateful_step_count=25, deadline=None, phases=phases)
    hypothesis.stateful.run_state_machine_as_test(ServingMachine, settings=settings)
