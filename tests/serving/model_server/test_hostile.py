"""Hostile requests over real connections: always an error that blames the client, and the server stays up."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator

import grpc
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.errors import ServingError
from serving.manager import ModelManager
from serving.model_server.grpc_service import ModelService
from serving.model_server.prediction_service import PredictionService
from serving.model_server.rest import RESTApp
from tests.serving.saved_models import CLASSIFY, DTYPES, REGRESS

CLIENTS_FAULT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
}
MUTANTS = 400
"""Of each valid message. The seed is fixed, so a failure comes again."""


@pytest.fixture(scope="module")
def handlers(serving: ModelManager) -> Iterator[dict[str, Callable]]:
    """The gRPC methods by name, as they take bytes off the wire."""
    dataplane, dispatcher = DataPlane(serving), Dispatcher()
    yield PredictionService(dataplane, dispatcher).handlers() | ModelService(dataplane).handlers()
    dispatcher.close()


def outcome(handler: Callable, data: bytes) -> object:
    """Return the status of a call; anything that is no ServingError passes, and fails the test."""

    async def call() -> object:
        try:
            response = handler(data)
            if asyncio.iscoroutine(response):
                response = await asyncio.wait_for(response, 60)
        except ServingError as error:
            return error.grpc_status
        assert isinstance(response, bytes)
        return grpc.StatusCode.OK

    return asyncio.run(call())


def examples(message: object) -> None:
    features = message.input.example_list.examples.add().features.feature
    features["x"].float_list.value.append(1.0)


def valid_messages() -> dict[str, tuple[str, bytes]]:
    """A valid message of each method, and a Predict of each dtype: name -> (method, bytes)."""
    spec = {"name": "half_plus_two", "version": {"value": 1}}
    messages = {}
    for dtype in DTYPES:
        request = predict_pb2.PredictRequest(model_spec={"name": "kinds", "signature_name": dtype.name})
        value = ["a", "bc"] if dtype is tf.string else [True, False]
        request.inputs["x"].CopyFrom(
            tf.make_tensor_proto(tf.cast(value, dtype) if dtype is not tf.string else value)
        )
        messages[f"Predict {dtype.name}"] = ("Predict", request)
    request = predict_pb2.PredictRequest(model_spec=spec, output_filter=["y"])
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
    messages["Predict"] = ("Predict", request)
    classify = classification_pb2.ClassificationRequest(model_spec=spec | {"signature_name": "classify"})
    regress = regression_pb2.RegressionRequest(model_spec=spec | {"signature_name": "regress"})
    both = inference_pb2.MultiInferenceRequest()
    both.tasks.add(model_spec=spec | {"signature_name": "classify"}, method_name=CLASSIFY)
    both.tasks.add(model_spec=spec | {"signature_name": "regress"}, method_name=REGRESS)
    for name, message in (("Classify", classify), ("Regress", regress), ("MultiInference", both)):
        examples(message)
        messages[name] = (name, message)
    messages["GetModelMetadata"] = (
        "GetModelMetadata",
        get_model_metadata_pb2.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"]),
    )
    messages["GetModelStatus"] = (
        "GetModelStatus",
        get_model_status_pb2.GetModelStatusRequest(model_spec=spec),
    )
    return {name: (method, message.SerializeToString()) for name, (method, message) in messages.items()}


MESSAGES = valid_messages()


def mutant(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with a few of them changed, lost, doubled, or put in."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(5)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << chance.randrange(8)
        elif kind == 1 and changed:
            changed[at % len(changed)] = chance.choice((0, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del changed[at : at + chance.randint(1, 8)]
        elif kind == 3:
            changed[at:at] = changed[at : at + chance.randint(1, 16)]
        else:
            changed[at:at] = chance.randbytes(chance.randint(1, 10))
    return bytes(changed)


@pytest.mark.parametrize("name", MESSAGES)
def test_no_mutated_message_is_worse_than_a_client_error(handlers: dict[str, Callable], name: str) -> None:
    method, data = MESSAGES[name]
    assert outcome(handlers[method], data) is grpc.StatusCode.OK
    chance = random.Random(name)
    for _ in range(MUTANTS):
        changed = mutant(data, chance)
        status = outcome(handlers[method], changed)
        assert status in CLIENTS_FAULT | {grpc.StatusCode.OK}, (status, changed)


@pytest.mark.parametrize(
    "method", [*sorted({method for method, _ in MESSAGES.values()}), "HandleReloadConfigRequest"]
)
def test_no_bytes_are_worse_than_a_client_error(handlers: dict[str, Callable], method: str) -> None:
    chance = random.Random(method)
    for size in range(60):
        assert outcome(handlers[method], b"\xff" + chance.randbytes(size)) in CLIENTS_FAULT


def test_a_deeply_nested_message_is_refused(handlers: dict[str, Callable]) -> None:
    """An unknown group within a group, 10,000 times."""
    assert outcome(handlers["Predict"], b"\x3b" * 10_000 + b"\x3c" * 10_000) in CLIENTS_FAULT


TENSORS = st.builds(
    lambda dtype, shape, unknown, content, floats, ints, strings: {
        "dtype": dtype,
        "tensor_shape": {"dim": [{"size": size} for size in shape], "unknown_rank": unknown},
        "tensor_content": content,
        "float_val": floats,
        "int_val": ints,
        "string_val": strings,
    },
    st.sampled_from([0, 1, 3, 7, 9, 10, 20, 21, 101, 99]),
    st.lists(st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**62, -(2**63)]), max_size=4) | st.just([1] * 300),
    st.booleans(),
    st.just(b"") | st.binary(max_size=16),
    st.lists(st.floats(width=32), max_size=3),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    st.lists(st.binary(max_size=3), max_size=3),
)


@settings(deadline=None, max_examples=300)
@given(TENSORS, st.sampled_from([dtype.name for dtype in DTYPES]))
def test_no_tensor_is_worse_than_a_client_error(
    handlers: dict[str, Callable], tensor: dict, signature: str
) -> None:
    request = predict_pb2.PredictRequest(model_spec={"name": "kinds", "signature_name": signature})
    request.inputs["x"].CopyFrom(tensor_pb2.TensorProto(**tensor))
    assert outcome(handlers["Predict"], request.SerializeToString()) in CLIENTS_FAULT | {grpc.StatusCode.OK}


@pytest.fixture(scope="module")
def ask(serving: ModelManager) -> Callable[[str, bytes], tuple[int, bytes]]:
    app = RESTApp(DataPlane(serving))
    return lambda path, body: asyncio.run(app.respond("POST", path, body))


BODIES = [
    (
        "half_plus_two:predict",
        b'{"signature_name": "serving_default", "instances": [{"x": 1.0}, {"x": 2e3}]}',
    ),
    ("half_plus_two:predict", b'{"inputs": {"x": [[1.5], [-2]]}}'),
    ("kinds:predict", b'{"signature_name": "string", "instances": ["a\\u00e9", {"b64": "aGk="}]}'),
    ("kinds:predict", b'{"signature_name": "two", "inputs": {"a": [[1, 2.5]], "b": [9007199254740993]}}'),
    ("kinds:predict", b'{"signature_name": "uint64", "inputs": [18446744073709551615, 0]}'),
    (
        "half_plus_two:classify",
        b'{"signature_name": "classify", "examples": [{"x": [1.0]}], "context": {"x": 2.0}}',
    ),
]
TOKENS = [
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\ud800", b"\\u0000", b"null", b"NaN"),
    *(b"-Inf", b"true", b'"\\ud800"'),
    *(b"-", b"1e999", b"1e-999", b"9" * 400, b"0x1", b"1.", b".5", b'{"b64": "*"}', b'{"b64": 1}'),
    *(b"[[[[", b"\x00"),
    *(b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"x": 1,', b" " * 20_000, b"[" * 600, b'{"x":' * 600),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_no_mutated_json_is_worse_than_a_client_error(
    ask: Callable[[str, bytes], tuple[int, bytes]], path: str, body: bytes
) -> None:
    assert ask(f"/v1/models/{path}", body)[0] == 200
    chance = random.Random(body)
    for _ in range(MUTANTS):
        changed = mutant(body, chance)
        for _ in range(chance.randint(0, 2)):
            at = chance.randrange(len(changed) + 1)
            changed = changed[:at] + chance.choice(TOKENS) + changed[at + chance.randint(0, 4) :]
        status, answer = ask(f"/v1/models/{path}", changed)
        assert status in (200, 400, 501), (status, answer, changed)
        if status != 200:
            assert list(json.loads(answer)) == ["error"], answer


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("kinds:predict", b'{"signature_name": "string", "instances": ["\\ud800"]}'),
        ("kinds:predict", b'{"signature_name": "string", "instances": [{"b64": "\\ud800"}]}'),
        ("kinds:predict", b'{"signature_name": "\\ud800", "instances": ["a"]}'),
        ("half_plus_two:classify", b'{"signature_name": "classify", "examples": [{"\xff": 1.0}]}'),
        ("half_plus_two:classify", b'{"signature_name": "classify", "examples": [{"\\udc80": 1.0}]}'),
        ("half_plus_two:regress", b'{"signature_name": "regress", "examples": [{"x": "\\ud800"}]}'),
        ("half_plus_two:predict", b'{"instances": [{"\xff": 1.0}]}'),
    ],
)
def test_text_that_cannot_be_utf8_is_refused(
    ask: Callable[[str, bytes], tuple[int, bytes]], path: str, body: bytes
) -> None:
    status, answer = ask(f"/v1/models/{path}", body)
    assert status == 400, answer
