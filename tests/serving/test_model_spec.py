"""The ModelSpec is replaced in the bytes exactly as protobuf would do it on the whole message."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_serving.apis import inference_pb2, predict_pb2
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.errors import InvalidInput
from serving.gateway.model_spec import read_spec, read_tasks, write_spec, write_tasks


def predict_request(name: str = "census", values: int = 3) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(output_filter=["y"])
    request.model_spec.name = name
    request.inputs["x"].tensor_content = np.arange(values, dtype=np.float32).tobytes()
    return request


@given(st.text(max_size=200), st.integers(0, 2**62), st.text(max_size=20), st.integers(0, 100))
def test_the_spec_is_replaced_and_nothing_else_changes(name, version, label, values):
    request = predict_request(name, values)
    request.model_spec.version_label = label
    spec, rest = read_spec(request.SerializeToString())
    assert spec == request.model_spec
    spec.version.value = version
    request.model_spec.version.value = version
    assert predict_pb2.PredictRequest.FromString(write_spec(spec, rest)) == request


def test_a_spec_in_several_pieces_is_merged_wherever_they_stand():
    name, signature = ModelSpec(name="census"), ModelSpec(signature_name="scores")
    body = predict_pb2.PredictRequest(output_filter=["y"]).SerializeToString()
    message = write_spec(name, body) + write_spec(signature, body)
    spec, rest = read_spec(message)
    assert spec == ModelSpec(name="census", signature_name="scores")
    assert rest == body + body
    assert predict_pb2.PredictRequest.FromString(
        write_spec(spec, rest)
    ) == predict_pb2.PredictRequest.FromString(message)


def test_fields_of_other_kinds_are_passed_over():
    unknown = b"\x78\x96\x01" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)  # field 15: varint, fixed64, fixed32
    spec, rest = read_spec(unknown + write_spec(ModelSpec(name="census"), b""))
    assert (spec.name, rest) == ("census", unknown)


def test_every_task_of_a_multi_inference_is_rewritten():
    request = inference_pb2.MultiInferenceRequest()
    for signature in ("classify", "regress"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{signature}")
        task.model_spec.name, task.model_spec.signature_name = "census", signature
    request.input.example_list.examples.add()
    tasks, rest = read_tasks(request.SerializeToString())
    for spec, _ in tasks:
        spec.version.value = 7
    for task in request.tasks:
        task.model_spec.version.value = 7
    assert inference_pb2.MultiInferenceRequest.FromString(write_tasks(tasks, rest)) == request


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "Missing ModelSpec"),
        (b"\x0a\x05ab", "ends after the last byte"),
        (b"\x0a", "no number at byte 1"),
        (b"\xff" * 12, "no number at byte 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x02\x0a\x7f", "Cannot parse the request's ModelSpec"),
    ],
)
def test_what_is_no_request_is_refused(message, text):
    with pytest.raises(InvalidInput, match=text):
        read_spec(message)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(message):
    try:
        spec, rest = read_spec(message)
    except InvalidInput:
        return
    assert read_spec(write_spec(spec, rest)) == (spec, rest)
