"""Ready-made input_fns: over arrays and data frames in memory, and over files."""

from appliance.estimator.inputs.arrays import numpy_input_fn, pandas_input_fn
from appliance.estimator.inputs.csv_files import csv_input_fn
from appliance.estimator.inputs.frames import dataframe_input_fn
from appliance.estimator.inputs.parquet_files import parquet_input_fn
from appliance.estimator.inputs.tfrecords import tfrecord_input_fn

__all__ = [
    "csv_input_fn",
    "dataframe_input_fn",
    "numpy_input_fn",
    "pandas_input_fn",
    "parquet_input_fn",
    "tfrecord_input_fn",
]
