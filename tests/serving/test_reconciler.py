"""Wanted against actual, step by step: a real registry, and a runtime that does what the test says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from registry import Registry
from serving import failed_versions
from serving.errors import ServingError
from serving.reconciler import Reconciler
from serving.runtime import Load, RuntimeUnavailable, StaleEnds, States, VersionState
from tests.waiting import wait_until

AVAILABLE, LOADING, ENDED = VersionState("AVAILABLE"), VersionState("LOADING"), VersionState("END")
BROKEN = VersionState("END", "no graph in it")


class ScriptedRuntime:
    """A runtime whose versions are in the states that the test sets."""

    kind = "scripted"

    def __init__(self) -> None:
        self.version_states: dict[int, VersionState] = {}
        self.applied: list[tuple[int, ...]] = []
        self.labels: dict[str, int] = {}
        self.trouble: Exception | None = None

    def states(self, models: Iterable[str]) -> States:
        if self.trouble is not None:
            raise self.trouble
        return {"census": dict(self.version_states)}

    def apply(self, loads: Sequence[Load]) -> None:
        versions = loads[0].versions if loads else ()
        self.labels = dict(loads[0].labels) if loads else {}
        if not self.applied or self.applied[-1] != versions:
            self.applied.append(versions)

    def close(self) -> None:
        self.version_states = {}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """Model census with the versions 1 to 3."""
    directory = tmp_path / "saved"
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(b"graph")
    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path / "models") as opened:
        opened.create_model("census")
        for _ in range(3):
            opened.publish("census", directory)
        yield opened


@pytest.fixture
def runtime() -> ScriptedRuntime:
    return ScriptedRuntime()


@pytest.fixture
def reconciler(registry: Registry, runtime: ScriptedRuntime) -> Reconciler:
    return Reconciler(registry, runtime, name="gateway-1", linger_seconds=0.0)


def promote(registry: Registry, version: int) -> None:
    registry.promote("census", version, actor="test")


def serve(registry: Registry, runtime: ScriptedRuntime, reconciler: Reconciler, version: int) -> None:
    """Promote a version and let it load."""
    promote(registry, version)
    reconciler.step()
    runtime.version_states[version] = AVAILABLE
    reconciler.step()
    assert reconciler.routes.resolve("census") == version


def look(reconciler: Reconciler) -> None:
    """A step that looks at the runtime even if all was settled."""
    reconciler.look_soon()
    reconciler.step()


def test_the_new_version_is_loaded_beside_the_old_one_before_the_route_moves(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    promote(registry, 2)
    reconciler.step()
    assert runtime.applied[-1] == (1, 2)
    runtime.version_states[2] = LOADING
    reconciler.step()
    assert reconciler.routes.resolve("census") == 1
    assert runtime.labels == {"production": 1}
    runtime.version_states[2] = AVAILABLE
    reconciler.step()
    assert reconciler.routes.resolve("census") == 2
    assert runtime.labels == {"production": 2}
    assert runtime.applied[-1] == (1, 2), "the rollback target stays loaded"


def test_rollback_is_one_step_and_loads_nothing(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    serve(registry, runtime, reconciler, 2)
    before = list(runtime.applied)
    registry.rollback("census", actor="test")
    reconciler.step()
    assert reconciler.routes.resolve("census") == 1
    assert runtime.applied[: len(before)] == before
    assert 1 in runtime.applied[-1]


def test_the_version_in_effect_stays_loaded_when_two_promotions_come_at_once(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    promote(registry, 2)
    promote(registry, 3)
    reconciler.step()
    assert runtime.applied[-1] == (1, 2, 3)
    runtime.version_states |= {2: AVAILABLE, 3: AVAILABLE}
    reconciler.step()
    look(reconciler)
    assert reconciler.routes.resolve("census") == 3
    assert runtime.applied[-1] == (2, 3)


def test_a_version_with_requests_in_flight_is_not_unloaded(registry, runtime):
    flying: list[tuple[str, int]] = []
    reconciler = Reconciler(registry, runtime, name="gateway-1", in_flight=lambda: flying, linger_seconds=0.0)
    for version in (1, 2):
        serve(registry, runtime, reconciler, version)
    flying.append(("census", 1))
    serve(registry, runtime, reconciler, 3)
    look(reconciler)
    assert runtime.applied[-1] == (1, 2, 3)
    flying.clear()
    look(reconciler)
    assert runtime.applied[-1] == (2, 3)


def test_an_unneeded_version_lingers_for_requests_just_routed_to_it(registry, runtime):
    reconciler = Reconciler(registry, runtime, name="gateway-1", linger_seconds=3600.0)
    for version in (1, 2, 3):
        serve(registry, runtime, reconciler, version)
    look(reconciler)
    assert runtime.applied[-1] == (1, 2, 3)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_version_is_never_loaded_and_its_promotion_undone(registry, runtime, reconciler, damage):
    serve(registry, runtime, reconciler, 1)
    promote(registry, 2)
    file = Path(registry.version("census", 2).uri) / "saved_model.pb"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"gra" if damage == "truncated" else b"grapH")
    reconciler.step()
    assert registry.labels("census") == {"production": 1}
    reason = registry.history("census")[0].reason
    assert f"its files are damaged: saved_model.pb is {damage}" in reason
    reconciler.step()
    assert all(2 not in versions for versions in runtime.applied)
    assert reconciler.routes.resolve("census") == 1


def test_a_damaged_version_that_served_before_is_loaded_once_its_files_are_restored(
    registry, runtime, reconciler, monkeypatch
):
    """The gateway restarts on a damaged disk: nothing to go back to, so it waits and says why."""
    monkeypatch.setattr(failed_versions, "RETRY_SECONDS", (0.0, 0.0))
    serve(registry, runtime, reconciler, 1)
    file = Path(registry.version("census", 1).uri) / "saved_model.pb"
    file.write_bytes(b"gra")
    again = ScriptedRuntime()
    restarted = Reconciler(registry, again, name="gateway-1")
    restarted.step()
    look(restarted)
    assert registry.labels("census") == {"production": 1}
    assert all(1 not in versions for versions in again.applied)
    told = restarted.state()["models"]["census"]["versions"][1]
    assert told["state"] == "END"
    assert "saved_model.pb is truncated (3 bytes instead of 5)" in told["error"]
    file.write_bytes(b"graph")
    look(restarted)
    assert again.applied[-1] == (1,)


def test_a_promotion_whose_version_will_not_load_is_undone(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    promote(registry, 2)
    reconciler.step()
    runtime.version_states[2] = BROKEN
    reconciler.step()
    assert registry.labels("census") == {"production": 1}
    assert registry.history("census")[0].reason == "version 2 would not load on gateway-1: no graph in it"
    reconciler.step()
    assert reconciler.routes.resolve("census") == 1
    assert reconciler.routes.applied(registry.revision())
    assert runtime.applied[-1] == (1,)


def test_a_version_promoted_again_is_not_judged_by_its_last_failure(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    promote(registry, 2)
    reconciler.step()
    runtime.version_states[2] = BROKEN
    reconciler.step()
    promote(registry, 2)
    reconciler.step()
    assert registry.labels("census") == {"production": 2}
    assert runtime.applied[-2:] == [(1,), (1, 2)], "left out once, so that the runtime tries it again"
    runtime.version_states[2] = AVAILABLE
    reconciler.step()
    assert reconciler.routes.resolve("census") == 2


def test_a_version_that_takes_too_long_counts_as_failed(registry, runtime):
    reconciler = Reconciler(registry, runtime, name="gateway-1", load_timeout_seconds=0.0)
    promote(registry, 1)
    reconciler.step()
    assert registry.labels("census") == {}
    assert "did not become available within 0 s" in registry.history("census")[0].reason


def test_a_promotion_that_has_served_is_never_undone_but_tried_again(
    registry, runtime, reconciler, monkeypatch
):
    monkeypatch.setattr(failed_versions, "RETRY_SECONDS", (0.0, 0.0))
    serve(registry, runtime, reconciler, 1)
    serve(registry, runtime, reconciler, 2)
    runtime.version_states = {1: AVAILABLE, 2: BROKEN}
    look(reconciler)
    look(reconciler)
    assert registry.labels("census") == {"production": 2}
    with pytest.raises(ServingError, match="no graph in it"):
        reconciler.routes.resolve("census")
    runtime.version_states[2] = AVAILABLE
    look(reconciler)
    assert reconciler.routes.resolve("census") == 2


def test_a_failed_version_is_left_out_for_a_pause_and_asked_for_again(
    registry, runtime, reconciler, monkeypatch
):
    monkeypatch.setattr(failed_versions, "RETRY_SECONDS", (0.05, 60.0))
    serve(registry, runtime, reconciler, 1)
    serve(registry, runtime, reconciler, 2)
    runtime.version_states[2] = BROKEN
    look(reconciler)
    assert runtime.applied[-1] == (1,)
    deadline = time.monotonic() + 60
    while runtime.applied[-1] != (1, 2):
        assert time.monotonic() < deadline
        look(reconciler)


def test_a_restarted_gateway_knows_from_the_reports_what_has_served(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    serve(registry, runtime, reconciler, 2)
    runtime.version_states[2] = BROKEN
    restarted = Reconciler(registry, runtime, name="gateway-1")
    restarted.step()
    look(restarted)
    assert registry.labels("census") == {"production": 2}


def test_a_gateway_restarted_in_a_promotion_goes_on_with_the_version_before(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    promote(registry, 2)
    runtime.version_states[2] = LOADING
    look(reconciler)
    restarted = Reconciler(registry, runtime, name="gateway-1")
    restarted.step()
    assert restarted.routes.resolve("census") == 1
    runtime.version_states[2] = AVAILABLE
    restarted.step()
    assert restarted.routes.resolve("census") == 2


def test_an_unreachable_runtime_changes_no_route_and_is_reported(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    runtime.trouble = RuntimeUnavailable("Cannot reach it.")
    reconciler.look_soon()
    with pytest.raises(RuntimeUnavailable):
        reconciler.step()
    assert reconciler.routes.resolve("census") == 1
    assert not reconciler.serving
    assert reconciler.state()["problems"] == {"runtime": "Cannot reach it."}
    runtime.trouble = None
    look(reconciler)
    assert reconciler.serving
    assert reconciler.state()["healthy"]


def test_a_fault_in_one_step_does_not_end_the_loop(registry, runtime):
    reconciler = Reconciler(registry, runtime, name="gateway-1", poll_wait_seconds=0.01)
    promote(registry, 1)
    runtime.version_states[1] = AVAILABLE
    runtime.trouble = ZeroDivisionError("a fault")
    reconciler.start()
    try:
        wait_until(lambda: "reconciler" in reconciler.problems, "the fault")
        assert reconciler.problems["reconciler"] == "ZeroDivisionError: a fault"
        runtime.trouble = None
        wait_until(
            lambda: reconciler.state()["healthy"] and reconciler.routes.applied(registry.revision()),
            "health",
        )
    finally:
        reconciler.stop()


def test_reports_are_written_on_change_only(registry, runtime, reconciler):
    serve(registry, runtime, reconciler, 1)
    (first,) = registry.serving_reports()
    assert first.states["census"].routes == {"production": 1}
    for _ in range(3):
        look(reconciler)
    assert registry.serving_reports() == [first]
    serve(registry, runtime, reconciler, 2)
    (second,) = registry.serving_reports()
    assert (second.revision, second.states["census"].routes) == (registry.revision(), {"production": 2})


def test_an_end_from_before_the_request_is_no_failure_until_it_has_had_its_time(monkeypatch):
    stale, load = StaleEnds(), Load("census", "/models/census", (2,))
    stale.asked((), (load,), {"census": {2: BROKEN}})
    assert stale.judge("census", 2, BROKEN) == VersionState("START")
    assert stale.judge("census", 2, LOADING) == LOADING
    assert stale.judge("census", 2, BROKEN) == BROKEN, "it was loading since, so this is news"
    monkeypatch.setattr("serving.runtime.STALE_SECONDS", 0.0)
    stale.asked((), (load,), {"census": {2: BROKEN}})
    assert stale.judge("census", 2, BROKEN) == BROKEN
