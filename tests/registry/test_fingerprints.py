"""Fingerprints: the same for the same data wherever it lies, another for any other."""

from pathlib import Path

import numpy as np
import pytest

from registry.fingerprints import fingerprint_arrays, fingerprint_files


def test_files_count_by_name_and_content_not_by_place(tmp_path: Path) -> None:
    for place, content in [("a", b"1,2"), ("b", b"1,2"), ("c", b"1,3")]:
        (tmp_path / place / "part").mkdir(parents=True)
        (tmp_path / place / "part" / "0.csv").write_bytes(content)
    first = fingerprint_files(tmp_path / "a")
    assert first.startswith("sha256:")
    assert first == fingerprint_files(tmp_path / "b") != fingerprint_files(tmp_path / "c")
    (tmp_path / "b" / "part" / "0.csv").rename(tmp_path / "b" / "part" / "1.csv")
    assert fingerprint_files(tmp_path / "b") != first
    assert fingerprint_files(tmp_path / "a" / "part" / "0.csv") != first
    with pytest.raises(OSError):
        fingerprint_files(tmp_path / "missing")


def test_arrays_count_by_name_dtype_shape_and_values() -> None:
    ages = np.array([30, 40], np.int32)
    first = fingerprint_arrays({"age": ages, "name": np.array(["ada", "bob"], object)})
    assert first == fingerprint_arrays({"name": np.array(["ada", "bob"], object), "age": ages.copy()})
    names = np.array(["ad", "abob"], object)
    for other in (
        {"age": ages, "name": names},
        {"age": ages.astype(np.int64), "name": np.array(["ada", "bob"], object)},
        {"age": ages.reshape(2, 1), "name": np.array(["ada", "bob"], object)},
        {"years": ages, "name": np.array(["ada", "bob"], object)},
        {"age": ages, "name": np.array([b"ada", "bob"], object)},
    ):
        assert fingerprint_arrays(other) != first
    assert fingerprint_arrays({"age": ages[::-1]}) == fingerprint_arrays(
        {"age": np.array([40, 30], np.int32)}
    )
    with pytest.raises(TypeError, match="give numbers, text or bytes"):
        fingerprint_arrays({"x": np.array([object()], object)})
