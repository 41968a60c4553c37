"""Requests and answers of Predict are the same, whether C reads and writes them or protobuf does."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

from serving import messages, predict_messages
from serving.dataplane import Prediction
from serving.errors import InvalidInput

DTYPES = [
    "f4",
    "f8",
    "f2",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "?",
    "c8",
    "c16",
    ml_dtypes.bfloat16,
    "O",
]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def in_both_ways(data: bytes) -> Any:
    """Read a request by C and by protobuf; return what both found, or the text of their error."""
    with pytest.MonkeyPatch.context() as patch:
        by_c = outcome(data)
        patch.setattr(predict_messages, "COMPILED", False)
        by_protobuf = outcome(data)
    if isinstance(by_c, str) or isinstance(by_protobuf, str):
        assert by_c == by_protobuf
        return by_c
    assert by_c[0] == by_protobuf[0]
    assert list(by_c[2]) == list(by_protobuf[2])
    assert by_c[1].keys() == by_protobuf[1].keys()
    for alias, array in by_c[1].items():
        other = by_protobuf[1][alias]
        assert (array.dtype, array.shape) == (other.dtype, other.shape)
        assert array.tobytes() == other.tobytes() if array.dtype != object else (array == other).all()
    return by_c


def outcome(data: bytes) -> Any:
    try:
        request = predict_messages.read(data)
        return request.spec, request.inputs(), request.output_filter
    except InvalidInput as error:
        return str(error)


def is_read_by_c(data: bytes) -> bool:
    return predict_messages._predict_messages.read(data) is not None


def array_of(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype == "O":
        return np.array([b"a%d" % seed] * int(np.prod(shape)), object).reshape(shape)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return (random.normal(size=shape) * 100).astype(dtype)


@st.composite
def requests(draw: st.DrawFn) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    spec = request.model_spec
    spec.name = draw(st.text(max_size=5))
    spec.signature_name = draw(st.sampled_from(["", "serving_default", "ä"]))
    match draw(st.sampled_from(["version", "label", "none"])):
        case "version":
            spec.version.value = draw(st.integers(-5, 2**63 - 1))
        case "label":
            spec.version_label = draw(st.sampled_from(["", "stable"]))
    request.output_filter.extend(draw(st.lists(st.text(max_size=3), max_size=2)))
    for alias in draw(st.lists(st.text(max_size=3), max_size=3, unique=True)):
        array = array_of(draw(st.sampled_from(DTYPES)), draw(SHAPES), draw(st.integers(0, 99)))
        request.inputs[alias].CopyFrom(tf.make_tensor_proto(array))
        if array.dtype == np.float32 and draw(st.booleans()):
            request.inputs[alias].ClearField("tensor_content")
            request.inputs[alias].float_val[:] = array.ravel().tolist()
    return request


def test_it_is_compiled_where_there_is_a_compiler() -> None:
    assert predict_messages.COMPILED or shutil.which("cc") is None


@settings(max_examples=500, deadline=None)
@given(requests())
def test_requests_are_read_alike(request: predict_pb2.PredictRequest) -> None:
    in_both_ways(request.SerializeToString())


@settings(max_examples=1500, deadline=None)
@given(
    requests(), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 400)
)
def test_broken_requests_are_read_alike(
    request: predict_pb2.PredictRequest, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(request.SerializeToString())
    for place, byte in changes:
        if place < len(data):
            data[place] = byte
    in_both_ways(bytes(data[: cut or None]))
    in_both_ways(bytes(data + data[:cut]))  # Fields that come twice.


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=40))
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")  # A length of more than 64 bits.
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")  # One that no message has.
def test_any_bytes_are_read_alike(data: bytes) -> None:
    in_both_ways(data)
    in_both_ways(b"\x0a\x03\x0a\x01m" + data)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "O"], ids=str)
def test_tensors_of_fixed_width_are_read_by_c(dtype: Any) -> None:
    request = predict_pb2.PredictRequest(
        model_spec={"name": "m", "version": {"value": 3}}, output_filter=["y"]
    )
    array = array_of(dtype, (3, 2), 1)
    x = request.inputs["x"]
    x.CopyFrom(tf.make_tensor_proto(array[:0].reshape(3, 2, 0)))
    x.tensor_shape.CopyFrom(tf.TensorShape((3, 2)).as_proto())
    x.tensor_content = array.tobytes()
    request.inputs["empty"].CopyFrom(tf.make_tensor_proto(array[:0]))
    data = request.SerializeToString()
    assert is_read_by_c(data)
    spec, inputs, output_filter = in_both_ways(data)
    assert (spec.name, spec.version, inputs.keys(), list(output_filter)) == ("m", 3, {"x", "empty"}, ["y"])
    assert inputs["x"].ctypes.data % 64 == 0  # TensorFlow need not copy it.


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (2**32, 2**32), (2**61,), (0, 2**31, 2**31)])
def test_shapes_that_no_array_has_are_refused_alike(shape: tuple[int, ...]) -> None:
    request = predict_pb2.PredictRequest(model_spec={"name": "m"})
    request.inputs["x"].dtype = tf.float32.as_datatype_enum
    for size in shape:
        request.inputs["x"].tensor_shape.dim.add(size=size)
    assert "tensor parsing error: x" in in_both_ways(request.SerializeToString())


def test_lengths_in_more_than_five_bytes_are_refused_alike() -> None:
    assert "is not a tensorflow.serving.PredictRequest" in in_both_ways(
        b"\x8a\x80\x80\x80\x80\x00\x03\x0a\x01m"
    )
    assert "is not a tensorflow.serving.PredictRequest" in in_both_ways(
        b"\x0a\x83\x80\x80\x80\x80\x00\x0a\x01m"
    )


def test_long_names_are_not_kept() -> None:
    for length in (10, 10_000):
        request = predict_pb2.PredictRequest(model_spec={"name": "n" * length})
        before = predict_messages._spec.cache_info().currsize
        assert predict_messages.read(request.SerializeToString()).spec.name == "n" * length
        assert predict_messages._spec.cache_info().currsize - before == (length < 256)


def test_typed_values_are_read_by_c() -> None:
    request = predict_pb2.PredictRequest(model_spec={"name": "m", "version_label": "stable"})
    request.inputs["f"].CopyFrom(tf.make_tensor_proto(np.float32(1.5)))
    request.inputs["d"].CopyFrom(tf.make_tensor_proto(np.float64(2.5)))
    assert is_read_by_c(request.SerializeToString())
    _, inputs, _ = in_both_ways(request.SerializeToString())
    assert (inputs["f"], inputs["d"]) == (np.float32(1.5), 2.5)


@settings(max_examples=500, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), st.tuples(st.sampled_from(DTYPES), SHAPES, st.integers(0, 99))),
    st.booleans(),
)
def test_answers_are_written_alike(outputs: dict[str, tuple], as_content: bool) -> None:
    arrays = {alias: array_of(*described) for alias, described in outputs.items()}
    prediction = Prediction(
        SimpleNamespace(name="m", version=7),
        SimpleNamespace(name="serving_default"),
        arrays,  # type: ignore[arg-type]
    )
    with pytest.MonkeyPatch.context() as patch:
        by_c = predict_messages.write(prediction, as_content=as_content)
        patch.setattr(predict_messages, "COMPILED", False)
        by_protobuf = predict_messages.write(prediction, as_content=as_content)
    parse = predict_pb2.PredictResponse.FromString
    assert parse(by_c) == parse(by_protobuf) == messages.predict_response(prediction, as_content=as_content)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
def test_the_usual_answers_are_written_by_c(dtype: str) -> None:
    array = array_of(dtype, (3, 4), 1)
    write = predict_messages._predict_messages.write
    assert write(b"", {"y": array}, False) is not None
    assert write(b"", {"y": array[()][0, 0]}, False) is not None
    assert write(b"", {"y": array.T}, False) is None
    assert write(b"", {"y": array.astype("c8")}, False) is None
