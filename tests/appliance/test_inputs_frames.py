"""input_fns over data frames of several libraries."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from appliance.estimator import inputs
from tests.appliance.test_inputs import batches_of

COLUMNS = {
    "age": [31, 42, 53],
    "income": [1.5, None, 3.5],
    "job": ["cook", "clerk", "cook"],
    "active": [True, False, True],
    "bought": [0, 1, 0],
}


class Stream:
    """An object of which only the Arrow stream is known."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def nullable():
    return pd.DataFrame(COLUMNS).convert_dtypes()


def categorical(frame):
    return frame.astype({"job": "category"})


FRAMES = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas nullable": nullable,
    "pandas category": lambda: categorical(pd.DataFrame(COLUMNS)),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars lazy": lambda: pl.LazyFrame(COLUMNS),
    "polars category": lambda: pl.DataFrame(COLUMNS).with_columns(pl.col("job").cast(pl.Categorical)),
    "arrow": lambda: pa.table(COLUMNS),
    "arrow dictionary": lambda: pa.table(COLUMNS | {"job": pa.array(COLUMNS["job"]).dictionary_encode()}),
    "stream": lambda: Stream(pa.table(COLUMNS)),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_every_kind_of_data_frame_gives_the_same_batches(make):
    ((features, labels),) = batches_of(inputs.dataframe_input_fn(make(), "bought", shuffle=False))
    assert sorted(features) == ["active", "age", "income", "job"]
    assert features["age"].tolist() == [31, 42, 53]
    assert features["age"].dtype == np.int64
    np.testing.assert_array_equal(features["income"], [1.5, np.nan, 3.5])
    assert features["job"].tolist() == [b"cook", b"clerk", b"cook"]
    assert features["active"].tolist() == [True, False, True]
    assert labels.tolist() == [0, 1, 0]


VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"v": pl.Series(VECTORS.tolist(), dtype=pl.Array(pl.Float32, 2))}),
        pa.table({"v": pa.FixedSizeListArray.from_arrays(VECTORS.ravel(), 2)}),
        pd.DataFrame({"v": list(VECTORS)}),
    ],
    ids=["polars", "arrow", "pandas"],
)
def test_vectors_become_a_second_dimension(frame):
    (features,) = batches_of(inputs.dataframe_input_fn(frame, shuffle=False))
    np.testing.assert_array_equal(features["v"], VECTORS)
    assert features["v"].dtype == np.float32


def test_several_labels_and_chosen_features():
    frame = pl.DataFrame(COLUMNS)
    ((features, labels),) = batches_of(
        inputs.dataframe_input_fn(frame, ["bought", "active"], features=["job"], shuffle=False)
    )
    assert list(features) == ["job"]
    assert {name: values.tolist() for name, values in labels.items()} == {
        "bought": [0, 1, 0],
        "active": [True, False, True],
    }


@pytest.mark.parametrize("kind", ["pandas", "pandas nullable", "polars", "arrow"])
def test_missing_values_are_named(kind):
    make = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}.get(kind, pd.DataFrame)
    strings = make({"job": ["cook", None, None]})
    with pytest.raises(ValueError, match="Column 'job' has 2 missing values"):
        inputs.dataframe_input_fn(strings, shuffle=True)
    if kind != "pandas":
        numbers = nullable() if kind == "pandas nullable" else make({"age": [1, None, 2]})
        if kind == "pandas nullable":
            numbers = pd.DataFrame({"age": [1, None, 2]}).convert_dtypes()
        with pytest.raises(ValueError, match="Column 'age' has 1 missing values"):
            inputs.dataframe_input_fn(numbers, shuffle=True)


@pytest.mark.parametrize(
    ("data", "arguments", "error", "message"),
    [
        ([1, 2], {}, TypeError, "pandas or polars DataFrame, an Arrow table"),
        (pl.DataFrame(COLUMNS), {"label": "price"}, ValueError, r"no columns \['price'\]. The columns are"),
        (pl.DataFrame(COLUMNS), {"label": "age", "features": ["age"]}, ValueError, "both feature and label"),
        (pl.DataFrame({"a": [1]}), {"label": "a"}, ValueError, "No column is left"),
        (pl.DataFrame({"a": [[1], [1, 2]]}), {}, ValueError, "'a' has rows of different lengths"),
        (pa.table({"a": pa.array([], pa.int64())}), {}, ValueError, "no rows"),
        (pd.DataFrame({"a": pd.to_datetime(["2026-01-01"])}), {}, ValueError, "'a' has the dtype datetime64"),
    ],
)
def test_bad_frames_are_refused(data, arguments, error, message):
    with pytest.raises(error, match=message):
        inputs.dataframe_input_fn(data, shuffle=True, **arguments)
