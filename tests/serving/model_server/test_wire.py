"""TensorProtos to numpy and back agree with TensorFlow's own conversions."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow.core.framework import tensor_pb2

from serving import dtypes, wire
from serving.errors import InvalidInput

NUMERIC = sorted(
    {
        d.numpy.str if d.name != "bfloat16" else "bfloat16"
        for d in dtypes.BY_NUMBER.values()
        if d.name != "string"
    }
)


def arrays(name: str) -> np.ndarray:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    return (np.arange(300).reshape(100, 3) % 100).astype(dtype)


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("as_content", [False, True])
def test_written_tensors_read_the_same_in_tensorflow(name: str, as_content: bool) -> None:
    array = arrays(name)
    proto = tensor_pb2.TensorProto()
    wire.fill_proto(array, proto, as_content=as_content)
    assert bool(proto.tensor_content) is as_content
    np.testing.assert_array_equal(tf.make_ndarray(proto), array)


@pytest.mark.parametrize("name", NUMERIC)
def test_tensors_from_tensorflow_read_the_same(name: str) -> None:
    array = arrays(name)
    np.testing.assert_array_equal(wire.to_array(tf.make_tensor_proto(array), "x"), array)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.complex64]),
        hnp.array_shapes(min_dims=0, min_side=0),
    )
)
def test_typed_fields_survive_a_round_trip(array: np.ndarray) -> None:
    proto = tensor_pb2.TensorProto()
    wire.fill_proto(array, proto)
    read = wire.to_array(tensor_pb2.TensorProto.FromString(proto.SerializeToString()), "x")
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype


def test_strings_survive_a_round_trip_as_bytes() -> None:
    array = np.array([[b"a", b"\xff\x00"], [b"", b"d" * 300]], object)
    proto = tensor_pb2.TensorProto()
    wire.fill_proto(array, proto)
    assert wire.to_array(proto, "x").tolist() == array.tolist()


def test_strings_in_tensor_content_are_lengths_then_bytes() -> None:
    proto = tensor_pb2.TensorProto(dtype=7, tensor_content=b"\x02\x00\x03abxyz")
    proto.tensor_shape.dim.add(size=3)
    assert wire.to_array(proto, "x").tolist() == [b"ab", b"", b"xyz"]


def test_equal_values_are_all_written() -> None:
    """tf.make_tensor_proto would write one of them; clients of TensorFlow Serving read all."""
    proto = tensor_pb2.TensorProto()
    wire.fill_proto(np.ones(3, np.float32), proto)
    assert list(proto.float_val) == [1.0, 1.0, 1.0]


def test_the_last_value_repeats_when_there_are_too_few() -> None:
    proto = tensor_pb2.TensorProto(dtype=1, float_val=[1.0, 2.0])
    proto.tensor_shape.dim.add(size=4)
    assert wire.to_array(proto, "x").tolist() == [1.0, 2.0, 2.0, 2.0]


def test_no_values_at_all_are_zeros() -> None:
    proto = tensor_pb2.TensorProto(dtype=3)
    proto.tensor_shape.dim.add(size=2)
    assert wire.to_array(proto, "x").tolist() == [0, 0]


@pytest.mark.parametrize(
    "proto",
    [
        tensor_pb2.TensorProto(),
        tensor_pb2.TensorProto(dtype=21),
        tensor_pb2.TensorProto(dtype=1, tensor_content=b"abc"),
        tensor_pb2.TensorProto(dtype=7, tensor_content=b"\xff"),
        tensor_pb2.TensorProto(dtype=1, tensor_shape={"dim": [{"size": -1}]}),
        tensor_pb2.TensorProto(dtype=1, tensor_shape={"unknown_rank": True}),
        tensor_pb2.TensorProto(dtype=1, tensor_shape={"dim": [{"size": 1}] * 255}),
        tensor_pb2.TensorProto(dtype=1, float_val=[1.0], tensor_shape={"dim": [{"size": 1 << 40}]}),
    ],
    ids=[
        "no dtype",
        "resource",
        "torn content",
        "torn strings",
        "negative",
        "no rank",
        "too deep",
        "too large",
    ],
)
def test_impossible_tensors_are_refused_by_name(proto: tensor_pb2.TensorProto) -> None:
    with pytest.raises(InvalidInput, match="tensor parsing error: pixels"):
        wire.to_array(proto, "pixels")


@given(st.binary(max_size=200))
def test_no_bytes_that_parse_do_worse_than_a_refusal(data: bytes) -> None:
    try:
        proto = tensor_pb2.TensorProto.FromString(data)
        proto.dtype = 1
        wire.to_array(proto, "x")
    except (InvalidInput, wire_errors()):
        pass


def wire_errors() -> type[Exception]:
    from google.protobuf.message import DecodeError

    return DecodeError
