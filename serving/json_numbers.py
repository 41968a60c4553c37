"""Predict bodies whose tensors are all numbers, read by C without a Python object for each number.

`_json_numbers.c` is compiled when the package is installed, if there is a C compiler. Without it nothing but
speed is lost: every body takes the ways that `serving.json_tensors` has for any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.dtypes import DType
from serving.servable import Signature

try:
    from serving._json_numbers import narrow as narrow
    from serving._json_numbers import read as read
except ImportError:
    COMPILED = False

    def read(body: bytes, /) -> Numbers | None:
        """Leave all bodies to others."""
        return None

else:
    COMPILED = True

Tensor = tuple[str | None, tuple[int, ...], bool, int, int]
"""Name, None if it stands alone; shape; whether its numbers are int64, else float64; the first of them, and
how many, among all of the body. It is a plain tuple: one is made anew for every request."""
Numbers = tuple[str, bool, Sequence[Tensor], bytes]
"""Signature name, empty if there is none; whether the tensors stand in `instances`, else in `inputs`; the
tensors; all their numbers, in eight bytes each."""


def inputs(tensors: Sequence[Tensor], numbers: bytes, signature: Signature) -> dict[str, np.ndarray] | None:
    """Return the inputs for a signature; None: it takes others, or other dtypes."""
    specs = signature.inputs
    if tensors[0][0] is None:
        if len(specs) > 1:
            return None
        named = dict.fromkeys(specs, tensors[0])
    else:
        named = {tensor[0]: tensor for tensor in tensors if tensor[0] is not None}
        if len(named) < len(tensors):
            return None  # Of two with the same name the first counts.
    arrays = {}
    for alias, spec in specs.items():
        tensor, dtype = named.get(alias), spec.dtype
        if tensor is None or dtype is None:
            return None
        _, shape, whole, first, count = tensor
        if dtype.name == "float":
            arrays[alias] = np.ndarray(shape, np.float32, *narrow(numbers, whole, first, count))
            continue
        array: np.ndarray = np.ndarray(shape, np.int64 if whole else np.float64, numbers, 8 * first)
        if not _fits(array, dtype):
            return None
        with np.errstate(over="ignore"):
            arrays[alias] = array.astype(dtype.numpy, copy=False)
    return arrays


def _fits(array: np.ndarray, dtype: DType) -> bool:
    """Whether JSON numbers like these may stand for a dtype."""
    if dtype.kind != "int":
        return dtype.kind == "float"
    if array.dtype != np.int64:
        return False
    limits = np.iinfo(dtype.numpy)
    return bool(array.min() >= limits.min and array.max() <= limits.max)
