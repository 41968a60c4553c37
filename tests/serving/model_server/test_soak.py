"""The soak benchmark, in small; and that it would tell if something went wrong."""

from pathlib import Path

from benchmarks import soak


def test_no_request_fails_over_two_swaps(tmp_path: Path) -> None:
    found = soak.run(tmp_path, requests=300, swaps=2, connections=4)
    assert found.failures == []
    assert found.answers >= 300
    assert len(found.memory_mb) == 2
    assert found.verdict() == "passed"


def test_a_wrong_answer_a_failure_and_growing_memory_are_told() -> None:
    found = soak.Soak(requests=10, swaps=6)
    found.note(1.0, frozenset({1}))
    assert found.verdict() == "passed"
    found.note(2.0, frozenset({1}))
    assert found.verdict() == "1 requests failed, the first: answer 2.0, where [1] could be"
    found = soak.Soak(requests=10, swaps=6, memory_mb=[500.0, 900.0, 900.0, 901.0, 902.0, 903.0])
    assert found.verdict() == "memory grows by 1.00 MB a swap"
