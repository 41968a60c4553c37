"""The client program in examples/serving_client, written for TensorFlow Serving, works here unchanged."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc

from examples.serving_client import model
from tests.serving.model_server.conftest import DEADLINE, Server

ANSWERS = {
    "REST | predict rows": '200 {"predictions":[2.5,3.0,4.5]}',
    "REST | predict columns": '200 {"outputs":[[2.5],[3.0]]}',
    "REST | predict a version": '200 {"predictions":[2.5]}',
    "REST | predict, packed": '200 {"predictions":[2.5]}',
    "REST | regress": '200 {"results":[3.0]}',
    "REST | classify": '200 {"results":[[["",3.0]]]}',
    "REST | status": '200 { "model_version_status": [ { "version": "1", "state": "AVAILABLE",',
    "REST | metadata": '200 { "model_spec": { "name": "half_plus_two",',
    "REST | no JSON": '400 {"error":"JSON Parse error',
    "REST | empty body": '400 {"error":"JSON Parse error: The document is empty"}',
    "REST | no object": "400 ",
    "REST | neither form": '400 {"error":"Missing \'inputs\' or \'instances\' key"}',
    "REST | both forms": "400 ",
    "REST | no rows": "400 ",
    "REST | text for a number": "400 ",
    "REST | ragged rows": "400 ",
    "REST | unknown input": "400 ",
    "REST | missing input": '400 {"error":"Missing named input: x in \'inputs\' object."}',
    "REST | number too large": '400 {"error":"JSON Parse error: Number too big to be stored in double."}',
    "REST | bad base64": "400 ",
    "REST | no tf.Example": '400 {"error":"Could not parse example input',
    "REST | unknown signature": '400 {"error":"Serving signature name: \\"tune\\" not found in signature def',
    "REST | no examples": "400 ",
    "REST | wrong feature type": "400 ",
    "REST | classify by regress": '400 {"error":"Expected classification signature outputs to contain',
    "REST | unknown model": '404 {"error":"Servable not found for request: Latest(other)',
    "REST | unknown version": '404 {"error":"Servable not found for request: Specific(half_plus_two, 9)',
    "REST | unknown label": '400 {"error":"Unrecognized servable version label: canary',
    "REST | unknown verb": '400 {"error":"Malformed request: POST /v1/models/half_plus_two:explain"}',
    "REST | status of an unknown model": '404 {"error":"Could not find any versions of model other"}',
    "gRPC | Predict": 'OK outputs { key: "y" value { dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float',
    "gRPC | Predict with a filter": 'OK outputs { key: "y"',
    "gRPC | Regress": "OK result { regressions { value: 3 } }",
    "gRPC | Classify": "OK result { classifications { classes { score: 3 } } }",
    "gRPC | MultiInference": "OK results {",
    "gRPC | GetModelMetadata": "OK model_spec {",
    "gRPC | GetModelStatus": "OK model_version_status { version: 1 state: AVAILABLE",
    "gRPC | no model spec": "INVALID_ARGUMENT Missing ModelSpec",
    "gRPC | no model name": "INVALID_ARGUMENT ModelSpec has no name specified.",
    "gRPC | unknown model": "NOT_FOUND Servable not found for request: Latest(other)",
    "gRPC | unknown version": "NOT_FOUND Servable not found for request: Specific(half_plus_two, 9)",
    "gRPC | unknown label": "INVALID_ARGUMENT Unrecognized servable version label: canary",
    "gRPC | unknown signature": 'FAILED_PRECONDITION Serving signature key "tune" not found.',
    "gRPC | no inputs": "INVALID_ARGUMENT input size does not match signature: 0!=1",
    "gRPC | unknown input": "INVALID_ARGUMENT Signature input alias: x not found",
    "gRPC | wrong dtype": "INVALID_ARGUMENT Expects arg[0] to be float but int32 is provided.",
    "gRPC | torn tensor": "INVALID_ARGUMENT tensor parsing error: x",
    "gRPC | unknown output": "INVALID_ARGUMENT output tensor alias not found in signature: z",
    "gRPC | output twice": "INVALID_ARGUMENT duplicate output tensor alias: y",
    "gRPC | no examples": "INVALID_ARGUMENT Input is empty.",
    "gRPC | regress by classify": "FAILED_PRECONDITION No regression outputs found in SignatureDef",
    "gRPC | one signature twice": "INVALID_ARGUMENT Duplicate evaluation of signature: regress_x_to_y",
    "gRPC | no tasks": "INVALID_ARGUMENT Inference request must have at least one task.",
    "gRPC | no metadata field": "INVALID_ARGUMENT GetModelMetadataRequest must specify at least one",
    "gRPC | unknown metadata field": "INVALID_ARGUMENT Metadata field graph is not supported.",
    "gRPC | status of an unknown model": "NOT_FOUND Could not find any versions of model other",
    "gRPC | reload without platform": "INVALID_ARGUMENT Illegal setting neither ModelServerConfig::",
    "gRPC | reload of a relative path": "INVALID_ARGUMENT Expected model other to have an absolute path",
}  # fmt: skip
"""What each line of the client's output begins with."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]) -> Server:
    base = tmp_path_factory.mktemp("half_plus_two")
    model.save(str(base / "1"))
    flags = ["--model_name=half_plus_two", f"--model_base_path={base}"]
    return start_server(*flags, model="half_plus_two")


def run_client(server: Server) -> list[str]:
    """Return the client's output by line."""
    addresses = ["--grpc", server.grpc, "--rest", server.rest.removeprefix("http://")]
    done = subprocess.run(
        [sys.executable, "-m", "examples.serving_client.client", *addresses],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_call_and_every_mistake_gets_tensorflow_servings_answer(server: Server) -> None:
    lines = [line.split(" | ", 2) for line in run_client(server)]
    answers = {f"{protocol} | {case}": answer for protocol, case, answer in lines}
    assert answers.keys() == ANSWERS.keys()
    wrong = {case: answers[case] for case, start in ANSWERS.items() if not answers[case].startswith(start)}
    assert wrong == {}


def test_bytes_that_are_no_protocol_disturb_neither_port(server: Server) -> None:
    for address in (server.grpc, server.rest.removeprefix("http://")):
        host, port = address.split(":")
        for sent in (
            b"\x00\xff" * 500,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
            b"GET / HTTP/9\r\n\r\n",
        ):
            with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
    assert server.post("/v1/models/half_plus_two:predict", json={"instances": [2.0]}).status_code == 200
    with server.channel() as channel:
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "half_plus_two"})
        assert len(models.GetModelStatus(request, timeout=DEADLINE).model_version_status) == 1
