"""Which version a request reaches: the pure rules."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import ServingTarget
from serving.errors import Code, ServingError
from serving.routing import NotYetServing, Routes, follow
from serving.runtime import VersionState

AVAILABLE, LOADING = VersionState("AVAILABLE"), VersionState("LOADING")
BROKEN = VersionState("END", "no graph in it")


def target(**labels: int) -> ServingTarget:
    return ServingTarget("census", "/models/census", tuple(sorted(set(labels.values()))), labels)


def routes(states: dict[int, VersionState], before: Routes | None = None, /, **labels: int) -> Routes:
    return follow([target(**labels)], {"census": states}, before or Routes(), 1)


def test_production_serves_a_request_that_names_neither_version_nor_label():
    found = routes({1: AVAILABLE, 2: AVAILABLE}, production=1, canary=2)
    assert found.resolve("census") == 1
    assert found.resolve("census", label="canary") == 2
    assert found.resolve("census", version=2) == 2


def test_a_route_stays_on_the_old_version_until_the_new_one_is_available():
    before = routes({1: AVAILABLE}, production=1)
    loading = routes({1: AVAILABLE, 2: LOADING}, before, production=2)
    assert loading.resolve("census") == 1
    assert not loading.applied(1)
    loaded = routes({1: AVAILABLE, 2: AVAILABLE}, loading, production=2)
    assert loaded.resolve("census") == 2
    assert loaded.applied(1)


def test_a_route_is_remembered_while_a_restarted_runtime_loads_again():
    before = routes({1: AVAILABLE}, production=1)
    away = routes({}, before, production=2)
    with pytest.raises(NotYetServing, match="version 2, to which label 'production' points, is loading"):
        away.resolve("census")
    back = routes({1: AVAILABLE, 2: BROKEN}, away, production=2)
    assert back.resolve("census") == 1


def test_a_removed_label_is_gone_at_once():
    before = routes({1: AVAILABLE}, production=1, canary=1)
    with pytest.raises(ServingError, match="Unrecognized servable version label: canary") as caught:
        routes({1: AVAILABLE}, before, production=1).resolve("census", label="canary")
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        (("flights",), Code.NOT_FOUND, "Models served here: census. Publish a version of 'flights'"),
        (("census",), Code.NOT_FOUND, "Model 'census' has no 'production' label"),
        (("census", 7), Code.NOT_FOUND, r"Specific\(census, 7\). Versions of model 'census' loaded now: 1\."),
        (("census", 2), Code.NOT_FOUND, "Loading version 2 failed: no graph in it"),
        (
            ("census", None, "shadow"),
            Code.INVALID_ARGUMENT,
            "label: shadow. Labels of model 'census': canary, new",
        ),
        (("census", None, "new"), Code.UNAVAILABLE, r"version 2, .* failed to load \(no graph in it\)"),
    ],
)
def test_errors_name_what_is_there_and_what_to_do(asked, code, text):
    found = routes({1: AVAILABLE, 2: BROKEN}, canary=1, new=2)
    with pytest.raises(ServingError, match=text) as caught:
        found.resolve(*asked)
    assert caught.value.code is code
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_nothing_is_unknown_before_the_registry_was_read():
    with pytest.raises(NotYetServing, match="has not reached the registry"):
        Routes().resolve("census")


def test_applied_asks_for_one_model_or_for_all():
    targets = [target(production=1), ServingTarget("flights", "/models/flights", (3,), {"production": 3})]
    found = follow(targets, {"census": {1: AVAILABLE}, "flights": {3: LOADING}}, Routes(), 5)
    assert found.applied(5, "census")
    assert not found.applied(5, "flights")
    assert not found.applied(5)
    assert not found.applied(6, "census")


versions = st.integers(1, 4)
state = st.sampled_from([AVAILABLE, LOADING, BROKEN, VersionState("UNLOADING"), VersionState("END")])
looks = st.tuples(
    st.dictionaries(st.sampled_from(["production", "canary"]), versions), st.dictionaries(versions, state)
)


@given(st.lists(looks, max_size=8))
def test_a_route_moves_only_to_what_is_wanted_and_available(sequence):
    found = Routes()
    for labels, states in sequence:
        before, found = found, routes(states, found, **labels)
        old = before.models["census"].labels if before.models else {}
        for label, version in found.models["census"].labels.items():
            moved = old.get(label) != version
            assert not moved or (labels[label] == version and states[version] is AVAILABLE)
        assert set(old) & set(labels) <= set(found.models["census"].labels)
