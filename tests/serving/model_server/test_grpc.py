"""The gRPC protocol, with TensorFlow Serving's own stubs against a server process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.serving.model_server.conftest import DEADLINE, Server
from tests.serving.saved_models import CLASSIFY, PREDICT, REGRESS, copy_version, corrupt_version

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def base(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    copy_version(made / "half_plus_two", base / "half", 1)
    copy_version(made / "half_plus_three", base / "half", 2)
    copy_version(made / "kinds", base / "kinds", 1)
    corrupt_version(base / "broken", 1)
    return base


@pytest.fixture(scope="module")
def server(base: Path, start_server: Callable[..., Server]) -> Server:
    config = base / "models.config"
    config.write_text(
        f"""model_config_list {{
          config {{ name: "half" base_path: "{base}/half" model_platform: "tensorflow"
                    model_version_policy {{ all {{}} }} version_labels {{ key: "stable" value: 1 }} }}
          config {{ name: "kinds" base_path: "{base}/kinds" model_platform: "tensorflow" }}
        }}"""
    )
    return start_server(
        f"--model_config_file={config}",
        "--max_num_load_retries=0",
        "--allow_version_labels_for_unavailable_models",
        model="half/versions/1",
    )


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with server.channel() as channel:
        yield channel


@pytest.fixture(scope="module")
def predictions(channel: grpc.Channel, server: Server) -> prediction_service_pb2_grpc.PredictionServiceStub:
    for model in ("half/versions/2", "kinds"):
        server.wait_until_answers(f"/v1/models/{model}", lambda r: "AVAILABLE" in r.text)
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module")
def models(channel: grpc.Channel) -> model_service_pb2_grpc.ModelServiceStub:
    return model_service_pb2_grpc.ModelServiceStub(channel)


def predict_request(**spec: object) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(model_spec={"name": "half"} | spec)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 5.0], tf.float32))
    return request


def examples(*xs: float) -> input_pb2.Input:
    message = input_pb2.Input()
    for x in xs:
        message.example_list.examples.add().features.feature["x"].float_list.value.append(x)
    return message


def refused(call: Callable[..., object], request: object) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=DEADLINE)
    return caught.value.code(), caught.value.details()


def test_predict_answers_with_the_resolved_spec_and_typed_fields(predictions) -> None:
    response = predictions.Predict(predict_request(), timeout=DEADLINE)
    assert list(response.outputs["y"].float_val) == [3.5, 5.5]
    assert response.outputs["y"].tensor_content == b""
    assert (response.model_spec.version.value, response.model_spec.signature_name) == (2, "serving_default")
    labelled = predictions.Predict(predict_request(version_label="stable"), timeout=DEADLINE)
    assert list(labelled.outputs["y"].float_val) == [2.5, 4.5]
    assert labelled.model_spec.version.value == 1
    assert labelled.model_spec.WhichOneof("version_choice") == "version"


@pytest.mark.parametrize(
    "dtype", [tf.string, tf.float16, tf.bfloat16, tf.complex64, tf.bool, tf.uint64, tf.int8]
)
def test_every_dtype_travels(predictions, dtype: tf.DType) -> None:
    values = (
        np.array([b"a", b"\xff"], object)
        if dtype is tf.string
        else np.array([0, 1]).astype(dtype.as_numpy_dtype)
    )
    request = predict_pb2.PredictRequest(model_spec={"name": "kinds", "signature_name": dtype.name})
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(values))
    response = predictions.Predict(request, timeout=DEADLINE)
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), values)


def test_large_tensors_travel_in_typed_fields_and_in_content(predictions) -> None:
    values = np.random.default_rng(0).normal(size=(4096, 20)).astype(np.float32)
    request = predict_pb2.PredictRequest(model_spec={"name": "kinds", "signature_name": "float32"})
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(values))
    content = predictions.Predict(request, timeout=DEADLINE).outputs["y"]
    request.inputs["x"].tensor_content = b""
    request.inputs["x"].float_val.extend(values.ravel().tolist())
    typed = predictions.Predict(request, timeout=DEADLINE).outputs["y"]
    np.testing.assert_array_equal(tf.make_ndarray(content), values)
    assert content == typed


def test_the_output_filter_chooses(predictions) -> None:
    request = predict_pb2.PredictRequest(
        model_spec={"name": "kinds", "signature_name": "two"}, output_filter=["twice"]
    )
    request.inputs["a"].CopyFrom(tf.make_tensor_proto([[1.0, 2.0]]))
    request.inputs["b"].CopyFrom(tf.make_tensor_proto([3], tf.int64))
    response = predictions.Predict(request, timeout=DEADLINE)
    assert {alias: list(proto.int64_val) for alias, proto in response.outputs.items()} == {"twice": [6]}


@pytest.mark.parametrize(
    ("spec", "code", "text"),
    [
        ({"name": "none"}, Code.NOT_FOUND, "Servable not found for request: Latest(none). No model 'none'"),
        (
            {"version": {"value": 9}},
            Code.NOT_FOUND,
            "Servable not found for request: Specific(half, 9). Versions",
        ),
        (
            {"version_label": "z"},
            Code.INVALID_ARGUMENT,
            "Unrecognized servable version label: z. Labels of model",
        ),
        ({"name": ""}, Code.INVALID_ARGUMENT, "ModelSpec has no name specified."),
        (
            {"signature_name": "z"},
            Code.FAILED_PRECONDITION,
            'Serving signature key "z" not found. Signatures',
        ),
    ],
)
def test_what_is_not_there_is_named(predictions, spec: dict, code: Code, text: str) -> None:
    assert refused(predictions.Predict, predict_request(**spec))[0] == code
    assert refused(predictions.Predict, predict_request(**spec))[1].startswith(text)


def test_wrong_requests_are_client_errors(predictions, channel: grpc.Channel) -> None:
    assert refused(predictions.Predict, predict_pb2.PredictRequest()) == (
        Code.INVALID_ARGUMENT,
        "Missing ModelSpec",
    )
    request = predict_request()
    request.inputs["x"].dtype = 0
    assert refused(predictions.Predict, request)[1].startswith("tensor parsing error: x")
    request = predict_request()
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1], tf.int64))
    assert "to be float but int64 is provided" in refused(predictions.Predict, request)[1]
    raw = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    assert refused(raw, b"\xff\xff\xff")[0] == Code.INVALID_ARGUMENT


def test_long_error_texts_are_cut(predictions) -> None:
    code, text = refused(predictions.Predict, predict_request(signature_name="z" * 5000))
    assert (code, len(text)) == (Code.FAILED_PRECONDITION, 1024 + len("...TRUNCATED"))


def test_classify_regress_and_both_together(predictions) -> None:
    spec = {"name": "half", "version_label": "stable"}
    request = classification_pb2.ClassificationRequest(
        model_spec=spec | {"signature_name": "classify"}, input=examples(2)
    )
    classified = predictions.Classify(request, timeout=DEADLINE)
    assert [(c.label, c.score) for c in classified.result.classifications[0].classes] == [("positive", 3.0)]
    request = regression_pb2.RegressionRequest(
        model_spec=spec | {"signature_name": "regress"}, input=examples(2, 4)
    )
    assert [r.value for r in predictions.Regress(request, timeout=DEADLINE).result.regressions] == [3.0, 4.0]
    request = inference_pb2.MultiInferenceRequest(input=examples(2))
    for name, method in (("regress", REGRESS), ("classify", CLASSIFY)):
        request.tasks.add(model_spec=spec | {"signature_name": name}, method_name=method)
    first, second = predictions.MultiInference(request, timeout=DEADLINE).results
    assert (first.regression_result.regressions[0].value, first.model_spec.version.value) == (3.0, 1)
    assert second.classification_result.classifications[0].classes[0].score == 3.0


@pytest.mark.parametrize(
    ("tasks", "code", "text"),
    [
        ([], Code.INVALID_ARGUMENT, "at least one task"),
        ([("regress", "x")], Code.UNIMPLEMENTED, "Unsupported signature method_name: x"),
        ([("regress", PREDICT)], Code.UNIMPLEMENTED, "Unsupported signature method_name"),
        ([("regress", REGRESS)] * 2, Code.INVALID_ARGUMENT, "Duplicate evaluation of signature: regress"),
        ([("z", REGRESS)], Code.INVALID_ARGUMENT, "Requested signature not found in model graph: z"),
    ],
)
def test_wrong_multi_inferences_are_named(
    predictions, tasks: list[tuple[str, str]], code: Code, text: str
) -> None:
    request = inference_pb2.MultiInferenceRequest(input=examples(2))
    for name, method in tasks:
        request.tasks.add(model_spec={"name": "half", "signature_name": name}, method_name=method)
    given, message = refused(predictions.MultiInference, request)
    assert (given, text in message) == (code, True)


def test_an_empty_input_is_refused(predictions) -> None:
    request = regression_pb2.RegressionRequest(model_spec={"name": "half", "signature_name": "regress"})
    assert refused(predictions.Regress, request) == (Code.INVALID_ARGUMENT, "Input is empty.")


def test_metadata_packs_the_signatures(predictions) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec={"name": "half"}, metadata_field=["signature_def"]
    )
    response = predictions.GetModelMetadata(request, timeout=DEADLINE)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert signatures.signature_def["serving_default"].inputs["x"].name == "x:0"
    request.ClearField("metadata_field")
    assert "must specify at least one metadata_field" in refused(predictions.GetModelMetadata, request)[1]
    request.metadata_field.append("size")
    assert "Metadata field size is not supported" in refused(predictions.GetModelMetadata, request)[1]


def test_status_lists_versions_newest_first(models, predictions) -> None:
    request = get_model_status_pb2.GetModelStatusRequest(
        model_spec={"name": "half", "version_label": "unknown"}
    )
    statuses = models.GetModelStatus(request, timeout=DEADLINE).model_version_status
    assert [(status.version, status.State.Name(status.state)) for status in statuses] == [
        (2, "AVAILABLE"),
        (1, "AVAILABLE"),
    ]


def reload_request(
    base: Path, *names: str, labels: dict[str, int] | None = None
) -> model_management_pb2.ReloadConfigRequest:
    request = model_management_pb2.ReloadConfigRequest()
    for name in names:
        entry = request.config.model_config_list.config.add(
            name=name, base_path=str(base / name.removesuffix("_again")), model_platform="tensorflow"
        )
        entry.model_version_policy.all.SetInParent()
        if name == "half":
            entry.version_labels.update(labels or {"stable": 1})
    return request


def test_reload_waits_for_new_models_and_moves_labels(models, predictions, base: Path) -> None:
    request = reload_request(base, "half", "kinds", "kinds_again", labels={"stable": 2, "next": 7})
    models.HandleReloadConfigRequest(request, timeout=DEADLINE)
    labelled = predictions.Predict(predict_request(version_label="stable"), timeout=DEADLINE)
    assert labelled.model_spec.version.value == 2
    status = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "kinds_again"})
    assert models.GetModelStatus(status, timeout=DEADLINE).model_version_status[0].state == 30
    assert refused(predictions.Predict, predict_request(version_label="next"))[0] == Code.NOT_FOUND
    models.HandleReloadConfigRequest(reload_request(base, "half", "kinds"), timeout=DEADLINE)
    assert refused(predictions.Predict, predict_request(version_label="next"))[0] == Code.INVALID_ARGUMENT


def test_reload_reports_a_model_that_will_not_load_and_others_go_on(models, predictions, base: Path) -> None:
    code, text = refused(models.HandleReloadConfigRequest, reload_request(base, "half", "kinds", "broken"))
    assert code == Code.UNKNOWN
    assert text.startswith("1 model(s) did not become available: {{{name: broken version: 1} due to error: ")
    assert predictions.Predict(predict_request(version_label="stable"), timeout=DEADLINE)
    models.HandleReloadConfigRequest(reload_request(base, "half", "kinds"), timeout=DEADLINE)


def test_a_reload_that_moves_a_used_label_to_an_absent_version_changes_nothing(
    models, predictions, base: Path
) -> None:
    request = reload_request(base, "half", "kinds", labels={"stable": 9})
    code, text = refused(models.HandleReloadConfigRequest, request)
    assert (code, "version 9 of model half" in text) == (Code.FAILED_PRECONDITION, True)
    labelled = predictions.Predict(predict_request(version_label="stable"), timeout=DEADLINE)
    assert labelled.model_spec.version.value == 1


def test_a_reload_without_platform_or_with_relative_paths_is_refused(models, predictions) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    entry = request.config.model_config_list.config.add(name="m", base_path="a")
    assert "model_platform" in refused(models.HandleReloadConfigRequest, request)[1]
    entry.model_platform = "tensorflow"
    assert "absolute path" in refused(models.HandleReloadConfigRequest, request)[1]
    entry.model_platform = "pytorch"
    assert refused(models.HandleReloadConfigRequest, request)[0] == Code.FAILED_PRECONDITION


def test_health_and_reflection_answer(channel: grpc.Channel, predictions) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "PredictionService", "tensorflow.serving.ModelService"):
        response = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    assert refused(health.Check, health_pb2.HealthCheckRequest(service="z"))[0] == Code.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"tensorflow.serving.PredictionService", "grpc.health.v1.Health"} <= set(services)
