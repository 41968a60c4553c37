"""PredictRequest and PredictResponse, from bytes to the data plane's objects and back.

The usual ones are read and written by C without protobuf's objects (`_predict_messages.c`), which is compiled
when the package is installed, if there is a C compiler. Without it nothing but speed is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from tensorflow_serving.apis import model_pb2, predict_pb2

from serving import dtypes, messages
from serving.dataplane import ModelSpec, Prediction

try:
    from serving import _predict_messages
except ImportError:
    COMPILED = False
else:
    COMPILED = True

_LONGEST_KEPT = 256
"""Characters of a spec's names together."""
_Input = tuple[str, int, tuple[int, ...], int]
"""Alias, number of the dtype, shape, place of the values among those of all inputs."""


class Request(NamedTuple):
    """A PredictRequest."""

    spec: ModelSpec
    inputs: Callable[[], Mapping[str, np.ndarray]]
    """Returns the inputs by alias; raises InvalidInput for a tensor that is none."""
    output_filter: Sequence[str]


def read(data: bytes) -> Request:
    """Return a serialized PredictRequest.

    Raises:
        InvalidInput: it is none, or does not name a model.
    """
    found = _predict_messages.read(data) if COMPILED else None
    if found is not None:
        spec, output_filter, inputs = found
        # Names are chosen by clients: long ones must not be kept.
        is_short = len(spec[0]) + len(spec[2] or "") + len(spec[3]) <= _LONGEST_KEPT
        return Request(
            _spec(*spec) if is_short else ModelSpec(*spec), partial(_arrays, *inputs), output_filter
        )
    request = messages.parsed(predict_pb2.PredictRequest, data)
    return Request(
        messages.model_spec(request), partial(messages.predict_inputs, request), request.output_filter
    )


def write(prediction: Prediction, *, as_content: bool = False) -> bytes:
    """Return a serialized PredictResponse. `as_content`: with tensor_content instead of typed fields."""
    if COMPILED:
        servable, signature, outputs = prediction
        spec = _serialized_spec(servable.name, servable.version, signature.name)
        written = _predict_messages.write(spec, outputs, as_content)
        if written is not None:
            return written
    response: bytes = messages.predict_response(prediction, as_content=as_content).SerializeToString()
    return response


def _arrays(inputs: Sequence[_Input], values: bytes) -> dict[str, np.ndarray]:
    return {
        alias: np.ndarray(shape, dtypes.BY_NUMBER[number].numpy, values, place)
        for alias, number, shape, place in inputs
    }


@lru_cache(maxsize=4096)
def _spec(name: str, version: int | None, label: str | None, signature_name: str) -> ModelSpec:
    return ModelSpec(name, version, label, signature_name)


@lru_cache(maxsize=4096)
def _serialized_spec(name: str, version: int, signature_name: str) -> bytes:
    spec = model_pb2.ModelSpec(name=name, signature_name=signature_name)
    spec.version.value = version
    serialized: bytes = spec.SerializeToString()
    return serialized
