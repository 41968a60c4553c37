"""The gateway answers the same whatever runs the models behind it: each test runs on both runtimes."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from registry import Registry
from serving.gateway import EmbeddedRuntime, Gateway, PortUnavailable
from tests.serving.gateway_support import (
    DEADLINE_SECONDS,
    Load,
    Models,
    Running,
    predict_request,
    wait_until,
)


@pytest.fixture(scope="module", params=["embedded", "sidecar"])
def house(request, tmp_path_factory) -> Iterator[tuple[Running, Models]]:
    """A gateway on one of the runtimes, and the models of its registry."""
    folder = tmp_path_factory.mktemp(request.param)
    registry = Registry(f"sqlite:///{folder}/registry.db", folder / "models")
    if request.param == "sidecar":
        runtime = request.getfixturevalue("model_server").runtime()
    else:
        runtime = EmbeddedRuntime()
    running = Running(registry, runtime, name="test")
    yield running, Models(registry, folder)
    running.stop()
    registry.close()


@pytest.fixture(scope="module")
def census(house) -> Running:
    """Model `census`: versions 1 and 2 in production (now 2), 3 is a canary, 4 has no label."""
    running, models = house
    models.publish("census", 4)
    running.promote("census", 1)
    running.promote("census", 2)
    running.promote("census", 3, label="canary")
    return running


def expect(call, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.RpcError, match=text) as caught:
        call()
    assert caught.value.code() is code


def test_rest_resolves_production_versions_and_labels(census):
    assert census.predict("census") == (200, [2.0])
    assert census.predict("census/versions/1") == (200, [1.0])
    assert census.predict("census/labels/canary") == (200, [3.0])
    status, answer = census.request(
        "POST", "/v1/models/census:regress", {"signature_name": "value", "examples": [{"a": 1.0}]}
    )
    assert (status, answer) == (200, {"results": [2.0]})
    status, metadata = census.request("GET", "/v1/models/census/labels/canary/metadata")
    assert (status, metadata["model_spec"]["version"]) == (200, "3")


def test_rest_status_lists_all_versions_or_the_one_of_a_label(census):
    def versions(path: str) -> list[tuple[str, str]]:
        status, answer = census.request("GET", path)
        assert status == 200
        return [(entry["version"], entry["state"]) for entry in answer["model_version_status"]]

    assert versions("/v1/models/census") == [(v, "AVAILABLE") for v in ("3", "2", "1")]
    assert versions("/v1/models/census/labels/production") == [("2", "AVAILABLE")]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/v1/models/flights:predict", 404, r"Models served here: .*census"),
        ("GET", "/v1/models/flights", 404, r"Models served here: .*census"),
        (
            "POST",
            "/v1/models/census/versions/4:predict",
            404,
            "loaded now: 1, 2, 3. Labelled versions are kept loaded",
        ),
        (
            "POST",
            "/v1/models/census/labels/shadow:predict",
            400,
            "Labels of model 'census': canary, production",
        ),
        ("POST", "/v1/models/census:guess", 400, "Malformed request: POST /v1/models/census:guess"),
        ("DELETE", "/v1/models/census", 400, "Malformed request: DELETE /v1/models/census"),
        ("GET", "/v1/models", 400, "Missing model name in request"),
        ("GET", "/v1/models/census/versions/9/metadata", 404, r"Specific\(census, 9\)"),
    ],
)
def test_rest_errors_say_what_there_is(census, method, path, status, text):
    found, answer = census.request(method, path, {"instances": [0.0]} if method == "POST" else None)
    assert found == status
    assert set(answer) == {"error"}
    assert re.search(text, answer["error"]), answer["error"]


def test_rest_preflights_are_answered_by_their_origin(census):
    for origin, status in (({"Origin": "https://example.org"}, 200), ({}, 400)):
        connection = http.client.HTTPConnection("127.0.0.1", census.rest_port, timeout=DEADLINE_SECONDS)
        connection.request("OPTIONS", "/v1/models/census:predict", headers=origin)
        assert connection.getresponse().status == status
        connection.close()


def test_rest_takes_gzip_and_chunks(census):
    body = gzip.compress(json.dumps({"instances": [0.0, 0.0]}).encode())
    connection = http.client.HTTPConnection("127.0.0.1", census.rest_port, timeout=DEADLINE_SECONDS)
    chunks = iter([body[:10], body[10:]])
    headers = {"Content-Encoding": "gzip", "Transfer-Encoding": "chunked"}
    connection.request("POST", "/v1/models/census:predict", chunks, headers, encode_chunked=True)
    assert json.loads(connection.getresponse().read()) == {"predictions": [2.0, 2.0]}
    connection.close()


def test_a_model_without_a_production_label_says_so(house):
    running, models = house
    models.publish("draft", 1)
    running.promote("draft", 1, label="canary")
    status, error = running.predict("draft")
    assert status == 404
    assert "has no 'production' label" in error
    assert "Promote a version to 'production' first, or ask for a label (canary)" in error
    assert running.predict("draft/labels/canary") == (200, [1.0])


def test_grpc_resolves_and_answers_every_method(census):
    example = tf.train.Example().SerializeToString()
    with census.channel() as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for request, version in (
            (predict_request("census"), 2),
            (predict_request("census", version=1), 1),
            (predict_request("census", label="canary"), 3),
        ):
            response = stub.Predict(request, timeout=DEADLINE_SECONDS)
            assert response.model_spec.version.value == version
            assert tf.make_ndarray(response.outputs["y"]).tolist() == [version]

        classify = classification_pb2.ClassificationRequest()
        classify.model_spec.name, classify.model_spec.signature_name = "census", "score"
        classify.input.example_list.examples.add().ParseFromString(example)
        answer = stub.Classify(classify, timeout=DEADLINE_SECONDS)
        assert answer.result.classifications[0].classes[0].score == 2.0

        regress = regression_pb2.RegressionRequest()
        regress.model_spec.name, regress.model_spec.signature_name = "census", "value"
        regress.input.CopyFrom(classify.input)
        assert stub.Regress(regress, timeout=DEADLINE_SECONDS).result.regressions[0].value == 2.0

        both = inference_pb2.MultiInferenceRequest()
        for signature, method in (("score", "classify"), ("value", "regress")):
            task = both.tasks.add(method_name=f"tensorflow/serving/{method}")
            task.model_spec.name, task.model_spec.signature_name = "census", signature
            task.model_spec.version_label = "canary"
        both.input.CopyFrom(classify.input)
        results = stub.MultiInference(both, timeout=DEADLINE_SECONDS).results
        assert results[0].classification_result.classifications[0].classes[0].score == 3.0
        assert results[1].regression_result.regressions[0].value == 3.0

        metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        metadata.model_spec.name = "census"
        assert stub.GetModelMetadata(metadata, timeout=DEADLINE_SECONDS).model_spec.version.value == 2

        status = get_model_status_pb2.GetModelStatusRequest()
        status.model_spec.name = "census"
        service = model_service_pb2_grpc.ModelServiceStub(channel)
        found = service.GetModelStatus(status, timeout=DEADLINE_SECONDS).model_version_status
        assert [entry.version for entry in found] == [3, 2, 1]


def test_grpc_errors_say_what_there_is(census):
    with census.channel() as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        service = model_service_pb2_grpc.ModelServiceStub(channel)
        unnamed = predict_request("")
        status = get_model_status_pb2.GetModelStatusRequest()
        status.model_spec.name = "flights"
        code = grpc.StatusCode
        for call, expected, text in (
            (
                lambda: stub.Predict(predict_request("flights")),
                code.NOT_FOUND,
                "Models served here: .*census",
            ),
            (
                lambda: stub.Predict(predict_request("census", version=4)),
                code.NOT_FOUND,
                "loaded now: 1, 2, 3",
            ),
            (lambda: stub.Predict(predict_request("census", label="x")), code.INVALID_ARGUMENT, "label: x"),
            (lambda: stub.Predict(unnamed), code.INVALID_ARGUMENT, "ModelSpec has no name specified"),
            (lambda: service.GetModelStatus(status), code.NOT_FOUND, "Models served here"),
        ):
            expect(call, expected, text)


def test_reloading_by_hand_is_refused_with_the_remedy(census):
    with census.channel() as channel:
        service = model_service_pb2_grpc.ModelServiceStub(channel)
        request = model_management_pb2.ReloadConfigRequest()
        expect(
            lambda: service.HandleReloadConfigRequest(request),
            grpc.StatusCode.PERMISSION_DENIED,
            "decided by the registry. Promote a version",
        )
    assert census.predict("census") == (200, [2.0])


def test_health_and_reflection_answer(census):
    with census.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def serving() -> bool:
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS).status
            return status == health_pb2.HealthCheckResponse.SERVING

        wait_until(serving, "health SERVING")
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName("tensorflow.serving.PredictionService")
        assert "Predict" in service.methods_by_name


def test_no_request_fails_while_versions_are_promoted_and_rolled_back_under_load(house):
    """And once a move is said to be applied, no answer comes from the version before."""
    running, models = house
    models.publish("busy", 3)
    running.promote("busy", 1)
    with Load(running, "busy", expected=(1.0,)) as load:
        load.wait_for_more()
        for version in (2, 3):
            load.expected = (version - 1.0, float(version))
            running.promote("busy", version)
            load.expected = (float(version),)
            load.wait_for_more()
        for version in (2, 1):
            load.expected = (version + 1.0, float(version))
            running.roll_back("busy")
            load.expected = (float(version),)
            load.wait_for_more()
    assert load.failures == []
    assert load.wrong == []
    assert {1.0, 2.0, 3.0} <= set(load.answers)


def test_a_version_that_no_label_needs_is_unloaded(house):
    running, models = house
    models.publish("tidy", 3)
    for version in (1, 2, 3):
        running.promote("tidy", version)
    wait_until(lambda: running.predict("tidy/versions/1")[0] == 404, "version 1 unloaded")
    assert running.predict("tidy/versions/2") == (200, [2.0])
    assert running.predict("tidy") == (200, [3.0])


def test_a_promotion_that_will_not_load_is_undone_with_the_reason_and_nobody_notices(house):
    running, models = house
    models.publish("brittle", 1)
    running.promote("brittle", 1)
    corrupt = models.publish_corrupt("brittle")
    with Load(running, "brittle", expected=(1.0,)) as load:
        running.registry.promote("brittle", corrupt, actor="test")
        running.gateway.wake()
        wait_until(lambda: running.registry.labels("brittle") == {"production": 1}, "promotion undone")
        load.wait_for_more()
    assert load.failures == []
    assert load.wrong == []
    undone, promoted, _ = running.registry.history("brittle")
    assert (undone.action, undone.from_version, undone.to_version) == ("undo", corrupt, 1)
    assert (promoted.action, promoted.to_version) == ("promote", corrupt)
    assert "version 2 would not load on test: " in undone.reason
    assert len(undone.reason) > len("version 2 would not load on test: ")
    running.wait_applied("brittle")


def test_a_first_promotion_that_will_not_load_takes_the_label_away(house):
    running, models = house
    running.registry.create_model("stillborn")
    corrupt = models.publish_corrupt("stillborn")
    running.registry.promote("stillborn", corrupt, actor="test")
    running.gateway.wake()
    wait_until(lambda: running.registry.labels("stillborn") == {}, "label removed")
    wait_until(lambda: running.predict("stillborn")[0] == 404, "no route")


def test_the_report_and_the_state_say_what_serves(census):
    state = census.gateway.state()
    assert state["healthy"], state
    assert state["models"]["census"]["routes"] == {"production": 2, "canary": 3}
    assert state["models"]["census"]["versions"][2] == {"state": "AVAILABLE", "error": ""}

    def reported() -> bool:
        (report,) = census.registry.serving_reports()
        model = report.states.get("census")
        return (
            model is not None
            and model.routes == {"production": 2, "canary": 3}
            and model.versions[2] == "AVAILABLE"
        )

    wait_until(reported, "report in the registry")


def test_a_token_is_asked_for_everywhere_but_by_health(tmp_path: Path):
    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path / "models") as registry:
        running = Running(registry, EmbeddedRuntime(), token="secret", name="guarded")
        try:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                status, answer = running.request("GET", "/v1/models/m", headers=headers)
                assert status == 401
                assert "Authorization: Bearer TOKEN" in answer["error"]
            assert running.request("GET", "/v1/models/m", headers={"Authorization": "Bearer secret"})[0] in (
                404,
                503,
            )
            with running.channel() as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                request = predict_request("m")
                for metadata in ((), (("authorization", "Bearer wrong"),)):
                    expect(
                        lambda metadata=metadata: stub.Predict(request, metadata=metadata),
                        grpc.StatusCode.UNAUTHENTICATED,
                        "authorization: Bearer TOKEN",
                    )
                with pytest.raises(grpc.RpcError) as caught:
                    stub.Predict(request, metadata=(("authorization", "Bearer secret"),))
                assert caught.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
                reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
                listing = reflection_pb2.ServerReflectionRequest(list_services="")
                asking = reflection.ServerReflectionInfo(iter([listing]), timeout=DEADLINE_SECONDS)
                expect(lambda: next(asking), grpc.StatusCode.UNAUTHENTICATED, "authorization: Bearer TOKEN")
                health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS
                )
        finally:
            running.stop()


def test_metrics_count_what_clients_were_answered(census):
    def number(line: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{census.rest_port}/metrics") as page:
            text = page.read().decode()
        found = [float(entry.rsplit(" ", 1)[1]) for entry in text.splitlines() if entry.startswith(line)]
        return found[0] if found else 0.0

    count = ':tensorflow:serving:request_count{{model_name="{}",status="{}"}}'.format
    latency = ':tensorflow:serving:request_latency_count{model_name="census",API="Predict",entrypoint="GRPC"}'
    lines = (count("census", "OK"), count("nobody", "NOT_FOUND"), latency)
    before = [number(line) for line in lines]
    assert census.predict("census") == (200, [2.0])
    assert census.predict("nobody")[0] == 404
    with census.channel() as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        service.Predict(predict_request("census"), timeout=DEADLINE_SECONDS)
        expect(
            lambda: service.Predict(predict_request("nobody"), timeout=DEADLINE_SECONDS),
            grpc.StatusCode.NOT_FOUND,
            "nobody",
        )
    after = [number(line) for line in lines]
    assert [a - b for a, b in zip(after, before, strict=True)] == [2.0, 2.0, 1.0]


def test_a_taken_grpc_port_is_said(census):
    with pytest.raises(PortUnavailable, match=f"127.0.0.1:{census.grpc_port}.*in use"):
        census.run(census.gateway.serve_grpc("127.0.0.1", census.grpc_port))


def test_wait_applied_gives_up_in_time(census):
    assert census.run(census.gateway.wait_applied(census.registry.revision() + 1000, 0.05)) is False


def test_grpc_before_the_start_is_refused(tmp_path: Path):
    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path / "models") as registry:
        gateway = Gateway(registry, EmbeddedRuntime())
        with pytest.raises(RuntimeError, match="before the gateway is started"):
            asyncio.run(gateway.serve_grpc("127.0.0.1", 0))
