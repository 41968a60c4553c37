"""Which versions are wanted, and what is done next: decided without threads or files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy import All, Latest, Load, Specific, State, Unload, VersionSnapshot, aspired, next_action

START, LOADING, AVAILABLE, UNLOADING, END = State


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Latest(), {9}),
        (Latest(0), {9}),
        (Latest(2), {9, 3}),
        (Latest(7), {1, 3, 9}),
        (All(), {1, 3, 9}),
        (Specific((1, 4)), {1}),
    ],
)
def test_policies_choose_among_the_versions_found(
    policy: Latest | All | Specific, expected: set[int]
) -> None:
    assert aspired(policy, [3, 9, 1]) == expected


def test_the_highest_new_version_is_loaded_first() -> None:
    versions = [VersionSnapshot(1, START, True), VersionSnapshot(2, START, True)]
    assert next_action(versions) == Load(2)


def test_the_new_version_is_loaded_before_the_old_one_is_unloaded() -> None:
    versions = [VersionSnapshot(1, AVAILABLE, False), VersionSnapshot(2, START, True)]
    assert next_action(versions) == Load(2)


def test_the_old_version_goes_once_the_new_one_is_available() -> None:
    versions = [VersionSnapshot(1, AVAILABLE, False), VersionSnapshot(2, AVAILABLE, True)]
    assert next_action(versions) == Unload(1)


def test_the_old_version_stays_when_the_new_one_failed() -> None:
    versions = [VersionSnapshot(1, AVAILABLE, False), VersionSnapshot(2, END, True)]
    assert next_action(versions) is None


def test_a_failed_load_waits_for_its_next_try() -> None:
    waiting = VersionSnapshot(2, LOADING, True, due=False)
    assert next_action([VersionSnapshot(1, AVAILABLE, False), waiting]) is None
    assert next_action([waiting, VersionSnapshot(3, START, True)]) == Load(3)


def test_the_lowest_of_several_unwanted_versions_goes_first() -> None:
    versions = [VersionSnapshot(n, AVAILABLE, n == 3) for n in (2, 1, 3)]
    assert next_action(versions) == Unload(1)


def test_all_versions_go_when_none_is_wanted() -> None:
    assert next_action([VersionSnapshot(1, AVAILABLE, False)]) == Unload(1)


SNAPSHOTS = st.lists(
    st.builds(VersionSnapshot, st.integers(1, 5), st.sampled_from(State), st.booleans(), st.booleans()),
    unique_by=lambda snapshot: snapshot.version,
)


@given(SNAPSHOTS)
def test_the_last_available_version_is_never_unloaded_while_another_is_wanted(
    versions: list[VersionSnapshot],
) -> None:
    action = next_action(versions)
    if isinstance(action, Unload) and any(v.aspired for v in versions):
        assert any(v.state is AVAILABLE and v.version != action.version for v in versions)
