"""A SavedModel in a graph Session, with one prepared callable for each signature.

A prepared callable skips what `Session.run` does in Python on every call; where the graph is quick it also
runs in the calling thread instead of TensorFlow's pool (measured on a two-layer network: 5 us a call against
19 us with the pool and about 250 us for a loaded ConcreteFunction). A callable checks the dtype of what it
is fed, not the static shape, and feeds any tensor, placeholder or not: both are TensorFlow Serving's
behaviour.

The Python objects of the graph are let go once the callables exist: C++ holds the graph. What remains of a
loaded model in Python is small, so loading and unloading leave the garbage collector little to walk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import pywrap_tf_session

from serving import dtypes, wire
from serving.batching import Batcher, BatchingParameters
from serving.errors import (
    Code,
    FailedPrecondition,
    InvalidInput,
    ModelFailed,
    ServingError,
    UnknownSignatureKey,
)
from serving.pace import Pace

DEFAULT_SIGNATURE = "serving_default"
_MAX_CALLABLES = 64
"""Prepared callables kept for one model; what is asked beyond these (subsets of outputs) is prepared for one
call."""


_Parts = tuple[tuple[str, tuple[str, ...]], ...]
"""What one call computes: signatures, and of each the outputs."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a signature: the graph's tensor, its dtype, and its shape (None: unknown rank;
    -1: any size)."""

    tensor: str
    dtype: dtypes.DType | None
    dtype_name: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Signature:
    """A named function of a SavedModel. `proto` is its SignatureDef."""

    name: str
    method_name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, np.ndarray]
    proto: Any = field(repr=False, compare=False)
    all_outputs: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all_outputs", tuple(self.outputs))  # As it is frozen.


class Servable:
    """A loaded SavedModel. Safe to run from many threads; `close` only when no call is running."""

    def __init__(self, name: str, version: int, session: Any, signatures: Mapping[str, Signature]) -> None:
        self.name = name
        self.version = version
        self.signatures = signatures
        self._session = session
        self._callables: dict[Hashable, _Callable] = {}
        self._paces = {signature: Pace() for signature in signatures}
        self._lock = threading.Lock()
        self._batcher: Batcher | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        tags: Sequence[str] = ("serve",),
        *,
        name: str = "",
        version: int = 0,
        config: Any = None,
    ) -> Servable:
        """Load the SavedModel in `path` (`saved_model.pb`, `variables/`, `assets/`) and prepare its
        signatures.

        `name` and `version` are what answers will be marked with; `config` is a tf.compat.v1.ConfigProto.

        Raises:
            ModelFailed: it is no SavedModel, is damaged, or has no graph with these tags.
        """
        graph = tf.Graph()
        session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            with graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(session, list(tags), os.fspath(path))
            signatures = {key: _signature(key, proto) for key, proto in meta_graph.signature_def.items()}
            session._extend_graph()  # The whole graph is in C++ from here on.
            servable = cls(name, version, session, signatures)
            servable._prepare_all()
        except tf.errors.OpError as error:
            session.close()
            raise model_failed(error) from error
        except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            # What TensorFlow's loader raises for a missing, torn or foreign saved_model.pb.
            session.close()
            raise ModelFailed(
                Code.NOT_FOUND if isinstance(error, OSError) else Code.INVALID_ARGUMENT, str(error)
            ) from error
        session._graph = None
        return servable

    def run(
        self, signature_name: str, inputs: Mapping[str, np.ndarray], output_filter: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Compute a signature's outputs, by alias; only those in `output_filter` unless it is empty.

        Inputs must have the signature's dtypes; their shapes are the graph's business. String tensors are
        arrays of objects (bytes). Missing inputs are filled from the signature's defaults, if it has any.

        Raises:
            InvalidInput: wrong names or dtypes, unknown or repeated outputs.
            FailedPrecondition: no such signature.
            ModelFailed: the graph refused the input, or failed.
        """
        signature = self.signatures.get(signature_name or DEFAULT_SIGNATURE)
        if signature is None:
            raise UnknownSignatureKey(signature_name or DEFAULT_SIGNATURE, list(self.signatures))
        feeds = _feeds(signature, inputs)
        wanted = _wanted(signature, output_filter) if output_filter else signature.all_outputs
        if self._batcher is None:
            outputs = self._execute_one(signature, wanted, feeds)
        else:
            outputs = self._batcher.run(((signature.name, wanted),), feeds)
        return dict(zip(wanted, outputs, strict=True))

    def run_together(
        self, parts: Sequence[tuple[str, Sequence[str]]], inputs: Mapping[str, np.ndarray]
    ) -> list[dict[str, np.ndarray]]:
        """Compute outputs of several signatures, given as (name, output aliases), in one run over the same
        inputs.

        All signatures must read the same tensors under the same aliases; `inputs` are checked against the
        first.
        """
        first = self.signatures[parts[0][0]]
        feeds = _feeds(first, inputs)
        wanted = tuple((name, tuple(aliases)) for name, aliases in parts)
        compute = self._execute if self._batcher is None else self._batcher.run
        outputs = iter(compute(wanted, feeds))
        return [{alias: next(outputs) for alias in aliases} for _, aliases in parts]

    def batch(self, parameters: BatchingParameters) -> None:
        """From now on let calls of the same signature and outputs, made in several threads, run together."""
        self._batcher = Batcher(parameters, self._execute)

    def pace(self, signature_name: str) -> Pace:
        """How long this signature's runs take."""
        return self._paces[signature_name]

    def close(self) -> None:
        """Free the model's memory. No call may be running, and none may follow."""
        with self._lock:
            self._callables.clear()
            self._session.close()

    def _execute(self, parts: _Parts, feeds: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        first = self.signatures[parts[0][0]]
        if len(parts) == 1:
            return self._execute_one(first, parts[0][1], feeds)
        try:
            return self._combined(first, parts)(feeds)
        except tf.errors.OpError as error:
            raise _refusal(error, first, feeds) from error

    def _execute_one(
        self, signature: Signature, wanted: tuple[str, ...], feeds: tuple[np.ndarray, ...]
    ) -> list[np.ndarray]:
        pace = self._paces[signature.name]
        pooled = pace.calls > 2 and not pace.quick
        function = self._callables.get((signature.name, wanted, pooled))
        if function is None:
            function = self._callable(signature, wanted, pooled=pooled)
        started = time.perf_counter()
        try:
            outputs = function(feeds)
        except tf.errors.OpError as error:
            raise _refusal(error, signature, feeds) from error
        pace.note(time.perf_counter() - started)
        return outputs

    def _prepare_all(self) -> None:
        for signature in self.signatures.values():
            try:
                self._callable(signature, signature.all_outputs, pooled=False)
            except (tf.errors.OpError, ServingError):
                # Such a signature is listed but cannot be run, like __saved_model_init_op; asking for it
                # tells why.
                continue

    def _callable(self, signature: Signature, wanted: tuple[str, ...], *, pooled: bool) -> _Callable:
        key = (signature.name, wanted, pooled)
        return self._callables.get(key) or self._prepare(key, signature, [(signature, wanted)], pooled=pooled)

    def _combined(self, first: Signature, parts: _Parts) -> _Callable:
        outputs = [(self.signatures[name], aliases) for name, aliases in parts]
        return self._callables.get(parts) or self._prepare(parts, first, outputs, pooled=False)

    def _prepare(
        self,
        key: Hashable,
        first: Signature,
        outputs: Sequence[tuple[Signature, tuple[str, ...]]],
        *,
        pooled: bool,
    ) -> _Callable:
        feeds = [_tensor_name(first, alias, spec) for alias, spec in first.inputs.items()]
        fetches = [
            _tensor_name(sig, alias, sig.outputs[alias]) for sig, aliases in outputs for alias in aliases
        ]
        with self._lock:
            if key in self._callables:
                return self._callables[key]
            try:
                prepared = _Callable(self._session, feeds, fetches, pooled=pooled)
            except tf.errors.OpError as error:
                raise model_failed(error) from error
            if len(self._callables) < _MAX_CALLABLES:
                self._callables[key] = prepared
            return prepared


def _refusal(error: tf.errors.OpError, signature: Signature, feeds: tuple[np.ndarray, ...]) -> ModelFailed:
    failed = model_failed(error)
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return failed
    # TensorFlow names the op that could not go on; who sent the request knows only its inputs.
    return ModelFailed(failed.code, failed.text + _misfits(signature, feeds))


def _misfits(signature: Signature, feeds: tuple[np.ndarray, ...]) -> str:
    """Return a sentence for each input whose shape is not what the signature declares."""
    told = ""
    for (alias, spec), array in zip(signature.inputs.items(), feeds, strict=True):
        if spec.shape is None or (
            len(spec.shape) == array.ndim
            and all(want in (-1, size) for want, size in zip(spec.shape, array.shape, strict=True))
        ):
            continue
        declared = ",".join("?" if size < 0 else str(size) for size in spec.shape)
        sent = ",".join(map(str, array.shape))
        told += (
            f" Input '{alias}' was sent with shape [{sent}]; signature '{signature.name}' takes [{declared}]."
        )
    return told


class _Callable:
    """Feeds and fetches prepared in the C++ session: tensors in, tensors out, each list in the given
    order."""

    def __init__(self, session: Any, feeds: Sequence[str], outputs: Sequence[str], *, pooled: bool) -> None:
        # What is fed cannot be fetched, and nothing is fetched twice: such outputs are picked afterwards.
        fetches = list(dict.fromkeys(tensor for tensor in outputs if tensor not in feeds))
        self._places = [
            (True, feeds.index(tensor)) if tensor in feeds else (False, fetches.index(tensor))
            for tensor in outputs
        ]
        self._as_fetched = self._places == [(False, place) for place in range(len(fetches))]
        options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
        if not pooled:
            options.run_options.inter_op_thread_pool = -1
        self._prepared = session._Callable(session, options)  # Released when it is no longer referred to.
        self._session, self._handle = session._session, self._prepared._handle

    def __call__(self, feeds: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        fetched: list[Any] = pywrap_tf_session.TF_SessionRunCallable(self._session, self._handle, feeds, None)
        if self._as_fetched:
            for place, array in enumerate(fetched):
                if type(array) is not np.ndarray:
                    fetched[place] = _as_array(array)
            return fetched
        return [feeds[place] if fed else _as_array(fetched[place]) for fed, place in self._places]


def _as_array(fetched: Any) -> np.ndarray:
    if isinstance(fetched, np.ndarray):
        return fetched
    # A scalar comes as a numpy scalar, a scalar string as bytes.
    return np.asarray(fetched, object if isinstance(fetched, bytes) else None)


def model_failed(error: tf.errors.OpError) -> ModelFailed:
    """Return TensorFlow's error as one of ours, with its own code and text."""
    return ModelFailed(Code(error.error_code), error.message or type(error).__name__)


def _signature(name: str, proto: Any) -> Signature:
    return Signature(
        name=name,
        method_name=proto.method_name,
        inputs={alias: _spec(info) for alias, info in sorted(proto.inputs.items())},
        outputs={alias: _spec(info) for alias, info in sorted(proto.outputs.items())},
        defaults={alias: wire.to_array(value, alias) for alias, value in proto.defaults.items()},
        proto=proto,
    )


def _spec(info: Any) -> TensorSpec:
    shape = None if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim)
    tensor = info.name if info.WhichOneof("encoding") == "name" else ""
    return TensorSpec(tensor, dtypes.BY_NUMBER.get(info.dtype), dtypes.name_of(info.dtype), shape)


def _tensor_name(signature: Signature, alias: str, spec: TensorSpec) -> str:
    if not spec.tensor:
        raise FailedPrecondition(
            f"'{alias}' of signature '{signature.name}' is a sparse or composite tensor, which cannot be "
            "sent. Export a signature with dense tensors."
        )
    return spec.tensor


def _feeds(signature: Signature, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    specs = signature.inputs
    if len(inputs) != len(specs) and (len(inputs) > len(specs) or not signature.defaults):
        raise _size_mismatch(inputs, specs)
    feeds: list[np.ndarray] = []
    for alias, spec in specs.items():
        array = inputs.get(alias)
        if array is None:
            array = signature.defaults.get(alias)
            if array is None:
                raise _unknown_alias(signature, inputs)
        if spec.dtype is None or array.dtype != spec.dtype.numpy:
            raise _wrong_dtype(signature, alias, spec, array, len(feeds))
        feeds.append(array)
    if len(inputs) != len(specs) and not inputs.keys() <= specs.keys():
        raise _unknown_alias(signature, inputs)
    return tuple(feeds)


def _size_mismatch(inputs: Mapping[str, Any], specs: Mapping[str, Any]) -> InvalidInput:
    sent, expected = sorted(inputs), sorted(specs)
    extra = sorted(inputs.keys() - specs.keys())
    missing = sorted(specs.keys() - inputs.keys())
    return InvalidInput(
        f"input size does not match signature: {len(sent)}!={len(expected)} len({{{','.join(sent)}}}) != "
        f"len({{{','.join(expected)}}}). Sent extra: {{{','.join(extra)}}}. "
        f"Missing but required: {{{','.join(missing)}}}."
    )


def _unknown_alias(signature: Signature, inputs: Mapping[str, Any]) -> InvalidInput:
    expected, sent = sorted(signature.inputs), sorted(inputs)
    missing = [alias for alias in expected if alias not in inputs and alias not in signature.defaults]
    alias = (missing or [name for name in sent if name not in signature.inputs])[0]
    return InvalidInput(
        f"Signature input alias: {alias} not found among the inputs sent: {{{','.join(sent)}}}. "
        f"Inputs expected to be in the set {{{','.join(expected)}}}."
    )


def _wrong_dtype(
    signature: Signature, alias: str, spec: TensorSpec, array: np.ndarray, position: int
) -> InvalidInput:
    given = dtypes.BY_NUMPY.get(array.dtype)
    given_name = given.name if given else str(array.dtype)
    return InvalidInput(
        f"Expects arg[{position}] to be {spec.dtype_name} but {given_name} is provided. "
        f"Input '{alias}' of signature '{signature.name}' takes {spec.dtype_name}."
    )


def _wanted(signature: Signature, output_filter: Sequence[str]) -> tuple[str, ...]:
    seen: set[str] = set()
    for alias in output_filter:
        if alias not in signature.outputs:
            raise InvalidInput(
                f"output tensor alias not found in signature: {alias} Outputs expected to be in the set "
                f"{{{','.join(sorted(signature.outputs))}}}."
            )
        if alias in seen:
            raise InvalidInput(f"duplicate output tensor alias: {alias}")
        seen.add(alias)
    return tuple(output_filter)
