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
    from serving import _json_numbers
except ImportError:
    COMPILED = False
else:
    COMPILED = True

Tensor = tuple[str | None, tuple[int, ...], bool, int, int]
"""Name, None if it stands alone; shape; whether its numbers are int64, else float64; the first of them, and
how many, among all of the body. It is a plain tuple: one is made anew for every request."""
Numbers = tuple[str, bool, Sequence[Tensor], bytes]
"""Signature name, empty if there is none; whether the tensors stand in `instances`, else in `inputs`; the
tensors; all their numbers, in eight bytes each."""


def read(body: bytes) -> Numbers | None:
    """Return what is in a body; None: it has to be read in another way."""
    return _json_numbers.read(body) if COMPILED else None


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
        tensor = named.get(alias)
        array = None if tensor is None or spec.dtype is None else _array(tensor, numbers, spec.dtype)
        if array is None:
            return None
        arrays[alias] = array
    return arrays


def _array(tensor: Tensor, numbers: bytes, dtype: DType) -> np.ndarray | None:
    _, shape, whole, first, count = tensor
    if dtype.name == "float":
        return np.ndarray(shape, np.float32, _json_numbers.narrow(numbers, whole, first, count))
    array: np.ndarray = np.ndarray(shape, np.int64 if whole else np.float64, numbers, 8 * first)
    if dtype.kind == "float":
        with np.errstate(over="ignore"):
            return array.astype(dtype.numpy, copy=False)
    if dtype.kind != "int" or not whole:
        return None
    limits = np.iinfo(dtype.numpy)
    if array.min() < limits.min or array.max() > limits.max:
        return None
    return array.astype(dtype.numpy, copy=False)
