"""Ready-made input_fns: over arrays and data frames in memory, and over files."""

from appliance.estimator.inputs.arrays import numpy_input_fn, pandas_input_fn

__all__ = [
    "numpy_input_fn",
    "pandas_input_fn",
]
