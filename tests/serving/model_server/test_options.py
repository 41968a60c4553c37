"""One server with most flags set: each does what it says, to clients that see it from outside."""

from __future__ import annotations

import concurrent.futures
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.serving.model_server.certificates import write_ssl_config
from tests.serving.model_server.conftest import DEADLINE, Server, wait_until
from tests.serving.saved_models import copy_version


@dataclass
class Secured:
    """A server with TLS on both ports, and what a client needs to trust it."""

    server: Server
    certificate: Path

    def client(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.certificate))
        address = self.server.rest.replace("http://", "https://")
        return httpx.Client(base_url=address, verify=context, timeout=DEADLINE)

    def stub(self) -> prediction_service_pb2_grpc.PredictionServiceStub:
        credentials = grpc.ssl_channel_credentials(self.certificate.read_bytes())
        return prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.secure_channel(self.server.grpc, credentials)
        )


@pytest.fixture(scope="module")
def secured(
    made: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]
) -> Secured:
    folder = tmp_path_factory.mktemp("options")
    models = []
    for name in ("half_plus_two", "slow"):
        copy_version(made / name, folder / name, 1)
        models.append(
            f'config {{ name: "{name}" base_path: "{folder}/{name}" model_platform: "tensorflow" }}'
        )
    files = {
        "model_config_file": f"model_config_list {{ {' '.join(models)} }}",
        "batching_parameters_file": "max_batch_size { value: 4 } allowed_batch_sizes: [2, 4]",
        "monitoring_config_file": 'prometheus_config { enable: true path: "/numbers" }',
        "tensorflow_session_config_file": "allow_soft_placement: true",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    tls = write_ssl_config(folder)
    server = start_server(
        *(f"--{name}={folder / name}" for name in files),
        f"--ssl_config_file={tls}",
        f"--rest_api_ssl_config_file={tls}",
        "--enable_batching",
        "--rest_api_enable_cors_support",
        "--rest_api_timeout_in_ms=1000",
        "--grpc_channel_arguments=grpc.max_receive_message_length=100000",
        "--tensorflow_session_parallelism=1",
        "--rest_api_num_threads=4",
        "--grpc_max_threads=2",
        "--num_load_threads=1",
        "--xla_cpu_compilation_enabled",
    )
    secured = Secured(server, folder / "certificate.pem")

    def all_available() -> bool:
        try:
            with secured.client() as client:
                answers = [client.get(f"/v1/models/{name}").text for name in ("half_plus_two", "slow")]
        except httpx.TransportError:
            assert server.process.poll() is None, "the server ended"
            return False
        return all("AVAILABLE" in answer for answer in answers)

    wait_until(all_available)
    return secured


def request(rows: int) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest(model_spec={"name": "half_plus_two"})
    message.inputs["x"].CopyFrom(tf.make_tensor_proto([2.0] * rows, tf.float32))
    return message


def test_both_ports_speak_tls_and_nothing_else(secured: Secured) -> None:
    with secured.client() as client:
        answer = client.post("/v1/models/half_plus_two:predict", json={"instances": [2.0, 4.0]})
    assert answer.json() == {"predictions": [3.0, 4.0]}
    assert list(secured.stub().Predict(request(2), timeout=DEADLINE).outputs["y"].float_val) == [3.0, 3.0]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{secured.server.rest}/v1/models/half_plus_two", timeout=DEADLINE)
    with secured.server.channel() as channel, pytest.raises(grpc.RpcError) as error:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request(1), timeout=DEADLINE)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_batching_parameters_hold_for_rest_and_grpc(secured: Secured) -> None:
    with secured.client() as client:
        answer = client.post("/v1/models/half_plus_two:predict", json={"instances": [2.0] * 5})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Task size 5 is larger than maximum input batch size 4")
    with pytest.raises(grpc.RpcError) as error:
        secured.stub().Predict(request(5), timeout=DEADLINE)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_requests_of_many_clients_get_their_own_answers_from_batches(secured: Secured) -> None:
    def ask(number: int) -> list[float]:
        with secured.client() as client:
            row = [float(number)] * (number % 3 + 1)
            return client.post("/v1/models/half_plus_two:predict", json={"instances": row}).json()[
                "predictions"
            ]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(32))) == [[n / 2 + 2.0] * (n % 3 + 1) for n in range(32)]


def test_a_message_over_the_limit_of_the_channel_is_refused(secured: Secured) -> None:
    with pytest.raises(grpc.RpcError) as error:
        secured.stub().Predict(request(30_000), timeout=DEADLINE)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_rest_request_that_takes_too_long_is_answered_504(secured: Secured) -> None:
    with secured.client() as client:
        answer = client.post("/v1/models/slow:predict", json={"inputs": 6.0})
        assert answer.status_code == 504
        assert "no answer within 1 s" in answer.json()["error"]
        assert client.post("/v1/models/half_plus_two:predict", json={"instances": [2.0]}).status_code == 200


def test_pages_of_other_origins_may_call(secured: Secured) -> None:
    with secured.client() as client:
        preflight = client.options("/v1/models/half_plus_two", headers={"Origin": "https://example.com"})
        answer = client.get("/v1/models/half_plus_two", headers={"Origin": "https://example.com"})
    assert preflight.headers["access-control-allow-methods"] == "GET, POST"
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-origin"] == "*"


def test_metrics_count_requests_by_model_status_and_protocol(secured: Secured) -> None:
    def numbers() -> dict[str, float]:
        text = client.get("/numbers").text
        return {
            name: float(number)
            for name, number in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        }

    def count(model: str, status: str) -> str:
        return f':tensorflow:serving:request_count{{model_name="{model}",status="{status}"}}'

    good, missing = count("half_plus_two", "OK"), count("missing", "NOT_FOUND")
    labels = 'model_name="half_plus_two",API="Predict",entrypoint="GRPC"'
    latency = f":tensorflow:serving:request_latency_count{{{labels}}}"
    bucket = f':tensorflow:serving:request_latency_bucket{{{labels},le="+Inf"}}'
    with secured.client() as client:
        before = numbers()
        client.post("/v1/models/half_plus_two:predict", json={"instances": [2.0]})
        client.post("/v1/models/missing:predict", json={"instances": [2.0]})
        secured.stub().Predict(request(1), timeout=DEADLINE)
        page = client.get("/numbers")
        after = numbers()
    assert page.headers["content-type"].startswith("text/plain")
    assert "# TYPE :tensorflow:serving:request_latency histogram" in page.text
    assert after[good] - before.get(good, 0) == 2
    assert after[missing] - before.get(missing, 0) == 1
    assert after[latency] - before.get(latency, 0) == 1
    assert after[bucket] == after[latency]
