"""When a version that failed is tried again."""

from __future__ import annotations

from serving.failed_versions import FailedVersions

KEY = ("census", 7)


def test_pauses_double_up_to_a_minute() -> None:
    failed, pauses = FailedVersions(), []
    for _ in range(8):
        failed.add(KEY, "no graph in it", now=0.0)
        pauses.append(next(s for s in range(100) if failed.may_be_tried(KEY, now=float(s))))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_error_stays_after_the_pause_until_the_version_is_forgotten() -> None:
    failed = FailedVersions()
    assert failed.may_be_tried(KEY, now=0.0)
    failed.add(KEY, "no graph in it", now=0.0)
    assert not failed.may_be_tried(KEY, now=0.9)
    assert failed.may_be_tried(KEY, now=1.0)
    assert KEY in failed
    assert failed.error(KEY) == "no graph in it"
    failed.keep_only([("census", 8)])
    assert (KEY in failed, failed.error(KEY)) == (False, "")
