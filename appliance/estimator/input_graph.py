"""The input side of a graph: what an `input_fn` returns, and arrays that stay out of the GraphDef."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from appliance.estimator.arguments import call_with_known
from appliance.estimator.columnar import columnar
from appliance.estimator.run_config import RunConfig
from appliance.estimator.tuning import untuned

_HOST_FED_BYTES = 1 << 16
"""Larger constants stay on the host. Tables have dozens of columns, so this is well below a megabyte."""


class Inputs(NamedTuple):
    """What the model is built from.

    Fields:
        features, labels: tensors, in the structure that the input_fn gave; labels may be None.
        initializer: the operation that starts (or restarts) the data; None when there is no Dataset.
        endless: whether the data can never run out, because nothing in it is a Dataset or a queue.
        arrays: what the data takes from this process; released when the run is over.
        agreement: what the workers that train together settle before each step; None for one that trains
            alone.
    """

    features: Any
    labels: Any
    initializer: Any
    endless: bool
    arrays: HostArrays
    agreement: Any = None

    def close(self) -> None:
        """Let go of the arrays."""
        self.arrays.release()

    def hooks(self) -> list[Any]:
        """Return the hooks that a session needs to get at the data."""
        return [] if self.initializer is None else [DataInitializerHook(self.initializer)]


def build_inputs(input_fn: Callable[..., Any], optional: Mapping[str, Any]) -> Inputs:
    """Call `input_fn` in the default graph and return its tensors.

    Args:
        input_fn: returns a Dataset of features or (features, labels), or the tensors themselves.
        optional: arguments that it gets if it names them.

    Raises:
        ValueError: it returned something else.
    """
    graph = tf.compat.v1.get_default_graph()
    with tf.device("/cpu:0"), host_fed_constants(graph) as arrays:
        result = call_with_known(input_fn, optional=optional)
        if not isinstance(result, tf.data.Dataset):
            features, labels = split(result)
            return Inputs(features, labels, None, not _reads_data(graph, (features, labels)), arrays)
        iterator = tf.compat.v1.data.make_initializable_iterator(untuned(prefetched(columnar(result), 2)))
        features, labels = split(iterator.get_next())
        return Inputs(features, labels, iterator.initializer, endless=False, arrays=arrays)


def called_dataset(input_fn: Callable[..., Any], optional: Mapping[str, Any], field: str) -> Any:
    """Call `input_fn` for a run with the strategy in `RunConfig.<field>` and return its Dataset.

    Raises:
        ValueError: it returned something else.
    """
    dataset = call_with_known(input_fn, optional=optional)
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(f"With {field} an input_fn must return a tf.data.Dataset. Given: {dataset!r}.")
    return dataset


def input_share(config: RunConfig) -> Any:
    """Return the `tf.distribute.InputContext` of a process that trains: which share of the data it reads.

    None when it is the only one. tf.estimator leaves workers of parameter servers without it, so that each
    reads all of the data.
    """
    if config.num_worker_replicas < 2 or config.global_id_in_cluster is None:
        return None
    return tf.distribute.InputContext(config.num_worker_replicas, config.global_id_in_cluster)


def split(result: Any) -> tuple[Any, Any]:
    """Return (features, labels) of what an input_fn, or an element of its Dataset, gave.

    Raises:
        ValueError: a tuple or list is not of length two.
    """
    if isinstance(result, list | tuple) and not hasattr(result, "_fields"):
        if len(result) != 2:
            raise ValueError(
                "input_fn should return (features, labels) as a tuple of length 2. "
                f"Given: {len(result)} elements, {result}. Put several features in a dict."
            )
        return result[0], result[1]
    return result, None


def prefetched(dataset: Any, batches: int) -> Any:
    """Return a Dataset that makes the next batches, so many, while the model works on this one."""
    if tf.data.experimental.to_variant(dataset).op.type == "PrefetchDataset":
        return dataset
    return dataset.prefetch(batches)


def _reads_data(graph: Any, tensors: Any) -> bool:
    """Return whether any tensor comes from an iterator or a queue, which can run out."""
    if graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS):
        return True
    flat = tf.nest.flatten(tensors, expand_composites=True)
    return any(tensor.op.type == "IteratorGetNext" for tensor in flat if isinstance(tensor, tf.Tensor))


class DataInitializerHook(tf.compat.v1.train.SessionRunHook):
    """Starts the data in every new session, after the lookup tables that it may use."""

    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the iterator's initializer."""
        session.run(self._initializer)


class HostArrays:
    """The arrays that one graph takes from this process; `release` lets them go."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def tensor(self, array: np.ndarray, name: str | None) -> Any:
        """Return a tensor in the default graph whose value is `array`, taken when it runs, without a copy."""
        index = len(self._arrays)
        self._arrays.append(array)
        tensor = tf.numpy_function(lambda: self._arrays[index], [], array_dtype(array), name=name)
        tensor.set_shape(array.shape)
        return tensor

    def release(self) -> None:
        """Let go of all arrays. The graph cannot start its data again after that."""
        self._arrays.clear()


_host_arrays: weakref.WeakKeyDictionary[Any, HostArrays] = weakref.WeakKeyDictionary()
_make_constant = ops._create_graph_constant


@contextlib.contextmanager
def host_fed_constants(graph: Any) -> Iterator[HostArrays]:
    """Keep large constants that are made in `graph`, or in functions inside it, out of its GraphDef.

    Each becomes an operation that takes the array from this process when it runs: at the initialisation of a
    Dataset, for instance. This is also what lifts the limit of 2 GB that a GraphDef has.
    """
    arrays = HostArrays()
    _host_arrays[graph] = arrays
    try:
        yield arrays
    finally:
        del _host_arrays[graph]


def _constant(
    value: Any, dtype: Any, shape: Any, name: str, verify_shape: bool, allow_broadcast: bool
) -> Any:
    """Stand in for TensorFlow's maker of graph constants; all but large ones in host-fed graphs go to it."""
    target = _host_fed_graph() if _host_arrays else None
    array = None if target is None else _large_array(value, dtype, shape)
    if target is None or array is None:
        return _make_constant(value, dtype, shape, name, verify_shape, allow_broadcast)
    with target.as_default(), tf.control_dependencies(None), tf.device("/cpu:0"):
        tensor = _host_arrays[target].tensor(array, name)
    here = tf.compat.v1.get_default_graph()
    return tensor if here is target else here.capture(tensor)


# The one place through which every constant of a graph is made; nothing public reaches it. A graph that is
# not host-fed at the moment sees no difference.
ops._create_graph_constant = _constant


def _host_fed_graph() -> Any:
    """Return the host-fed graph that the default graph is, or is a function of; None if it is none."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph not in _host_arrays:
        graph = getattr(graph, "outer_graph", None)
    return graph


def array_dtype(array: np.ndarray) -> Any:
    """Return the TensorFlow dtype of an array; arrays of objects hold strings."""
    return tf.string if array.dtype == object else tf.as_dtype(array.dtype)


def _large_array(value: Any, dtype: Any, shape: Any) -> np.ndarray | None:
    """Return `value` as the array that the constant holds, or None when it is small or of another kind."""
    if isinstance(value, list | tuple):
        if _list_bytes(value) < _HOST_FED_BYTES:
            return None
        value = _list_array(value, dtype)
    elif not isinstance(value, np.ndarray):
        # Columns of data frames come with a dtype of their own and turn into arrays at no cost.
        if not hasattr(value, "__array__") or not hasattr(value, "dtype") or tf.is_tensor(value):
            return None
        value = np.asarray(value)
    if value.nbytes < _HOST_FED_BYTES or value.dtype.kind not in "biufcOUS":
        return None
    if value.dtype.kind in "US":
        value = (np.char.encode(value, "utf-8") if value.dtype.kind == "U" else value).astype(object)
    elif value.dtype.kind == "O" and not all(isinstance(item, str | bytes) for item in value.flat):
        # TensorFlow's own error for arrays of mixed objects comes at once and names the type.
        return None
    if dtype is not None and tf.as_dtype(dtype) != array_dtype(value):
        value = value.astype(tf.as_dtype(dtype).as_numpy_dtype)
    if shape is not None:
        wanted = tf.TensorShape(shape)
        if wanted.num_elements() != value.size:
            return None
        value = value.reshape(wanted.as_list())
    return np.ascontiguousarray(value)


def _list_bytes(value: Any) -> int:
    """Return about how large the array of a nested list is, from the first element of each level."""
    count = 1
    while isinstance(value, list | tuple):
        count *= len(value)
        value = value[0] if value else None
    return 0 if tf.is_tensor(value) else 4 * count


def _list_array(value: Any, dtype: Any) -> np.ndarray:
    """Return the array that TensorFlow makes of a list: float32 and int32 where no dtype is asked for."""
    array = np.array(value, dtype=None if dtype is None else tf.as_dtype(dtype).as_numpy_dtype)
    if dtype is None and array.dtype == np.float64:
        return array.astype(np.float32)
    if dtype is None and array.dtype == np.int64 and np.array_equal(array, narrow := array.astype(np.int32)):
        return narrow
    return array
