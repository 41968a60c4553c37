"""A client written as TensorFlow Serving's documentation shows: `tensorflow_serving.apis` and plain HTTP.

    python -m examples.serving_client.model models/half_plus_two/1
    python -m serving.model_server --port=8500 --rest_api_port=8501 --model_name=half_plus_two \
        --model_base_path=$PWD/models/half_plus_two          # or tensorflow_model_server, with the same flags
    python -m examples.serving_client.client [--grpc 127.0.0.1:8500] [--rest 127.0.0.1:8501]

Nothing here knows which of the two servers answers. It asks for everything that the protocol offers, then
makes every mistake that a client can make, and prints what comes back: a line each.
"""

from __future__ import annotations

import argparse
import gzip
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

MODEL = "half_plus_two"
TIMEOUT = 60.0
REGRESS, CLASSIFY = "regress_x_to_y", "classify_x_to_y"


def main() -> None:
    """Ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grpc", default="127.0.0.1:8500")
    parser.add_argument("--rest", default="127.0.0.1:8501")
    options = parser.parse_args()
    ask_rest(f"http://{options.rest}/v1/models/")
    with grpc.insecure_channel(options.grpc) as channel:
        ask_grpc(channel)


def show(protocol: str, case: str, answer: str) -> None:
    """Print one line."""
    print(f"{protocol} | {case} | {answer}")


def ask_rest(models: str) -> None:
    """Ask over HTTP."""

    def ask(case: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> None:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(models + path, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                show("REST", case, f"{response.status} {short(response.read())}")
        except urllib.error.HTTPError as error:
            show("REST", case, f"{error.code} {short(error.read())}")

    predict, example = f"{MODEL}:predict", {"examples": [{"x": 2.0}]}
    ask("predict rows", predict, {"instances": [1.0, 2.0, 5.0]})
    ask("predict columns", predict, {"inputs": {"x": [[1.0], [2.0]]}})
    ask("predict a version", f"{MODEL}/versions/1:predict", {"instances": [{"x": 1.0}]})
    packed = gzip.compress(b'{"instances": [1.0]}')
    ask("predict, packed", predict, packed, {"Content-Encoding": "gzip"})
    ask("regress", f"{MODEL}:regress", {"signature_name": REGRESS} | example)
    ask("classify", f"{MODEL}:classify", {"signature_name": CLASSIFY} | example)
    ask("status", MODEL)
    ask("metadata", f"{MODEL}/metadata")

    ask("no JSON", predict, b'{"instances": [1.0')
    ask("empty body", predict, b"")
    ask("no object", predict, [1.0])
    ask("neither form", predict, {"rows": [1.0]})
    ask("both forms", predict, {"instances": [1.0], "inputs": [1.0]})
    ask("no rows", predict, {"instances": []})
    ask("text for a number", predict, {"instances": ["one"]})
    ask("ragged rows", predict, {"instances": [[1.0], [2.0, 3.0]]})
    ask("unknown input", predict, {"instances": [{"z": 1.0}]})
    ask("missing input", predict, {"inputs": {"z": 1.0}})
    ask("number too large", predict, b'{"instances": [1e999]}')
    ask("bad base64", predict, {"signature_name": REGRESS, "instances": [{"b64": "*"}]})
    ask("no tf.Example", predict, {"signature_name": REGRESS, "instances": ["text"]})
    ask("unknown signature", predict, {"signature_name": "tune", "instances": [1.0]})
    ask("no examples", f"{MODEL}:regress", {"signature_name": REGRESS})
    ask("wrong feature type", f"{MODEL}:regress", {"signature_name": REGRESS, "examples": [{"x": 2}]})
    ask("classify by regress", f"{MODEL}:classify", {"signature_name": REGRESS} | example)
    ask("unknown model", "other:predict", {"instances": [1.0]})
    ask("unknown version", f"{MODEL}/versions/9:predict", {"instances": [1.0]})
    ask("unknown label", f"{MODEL}/labels/canary:predict", {"instances": [1.0]})
    ask("unknown verb", f"{MODEL}:explain", {"instances": [1.0]})
    ask("status of an unknown model", "other")


def ask_grpc(channel: grpc.Channel) -> None:
    """Ask over gRPC."""
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    models = model_service_pb2_grpc.ModelServiceStub(channel)

    def ask(case: str, call: Callable[..., Any], request: Any) -> None:
        try:
            response = call(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            show("gRPC", case, f"{error.code().name} {short(error.details().encode())}")
        else:
            show("gRPC", case, f"OK {short(str(response).encode())}")

    ask("Predict", predictions.Predict, predict())
    ask("Predict with a filter", predictions.Predict, predict(output_filter=["y"]))
    ask("Regress", predictions.Regress, of_examples(regression_pb2.RegressionRequest, REGRESS))
    ask("Classify", predictions.Classify, of_examples(classification_pb2.ClassificationRequest, CLASSIFY))
    ask("MultiInference", predictions.MultiInference, several(CLASSIFY, REGRESS))
    ask("GetModelMetadata", predictions.GetModelMetadata, metadata("signature_def"))
    ask("GetModelStatus", models.GetModelStatus, status(MODEL))

    ask("no model spec", predictions.Predict, predict_pb2.PredictRequest())
    ask("no model name", predictions.Predict, predict({"name": ""}))
    ask("unknown model", predictions.Predict, predict({"name": "other"}))
    ask("unknown version", predictions.Predict, predict({"name": MODEL, "version": {"value": 9}}))
    ask("unknown label", predictions.Predict, predict({"name": MODEL, "version_label": "canary"}))
    ask("unknown signature", predictions.Predict, predict({"name": MODEL, "signature_name": "tune"}))
    ask("no inputs", predictions.Predict, predict_pb2.PredictRequest(model_spec={"name": MODEL}))
    ask("unknown input", predictions.Predict, predict(alias="z"))
    ask("wrong dtype", predictions.Predict, predict(tensor=tf.make_tensor_proto([1, 2])))
    torn = tf.make_tensor_proto([1.0, 2.0])
    torn.tensor_content = b"123"
    ask("torn tensor", predictions.Predict, predict(tensor=torn))
    ask("unknown output", predictions.Predict, predict(output_filter=["z"]))
    ask("output twice", predictions.Predict, predict(output_filter=["y", "y"]))
    ask("no examples", predictions.Regress, of_examples(regression_pb2.RegressionRequest, REGRESS, 0))
    ask("regress by classify", predictions.Regress, of_examples(regression_pb2.RegressionRequest, CLASSIFY))
    ask("one signature twice", predictions.MultiInference, several(REGRESS, REGRESS))
    ask("no tasks", predictions.MultiInference, several())
    ask("no metadata field", predictions.GetModelMetadata, metadata())
    ask("unknown metadata field", predictions.GetModelMetadata, metadata("graph"))
    ask("status of an unknown model", models.GetModelStatus, status("other"))
    ask("reload without platform", models.HandleReloadConfigRequest, reload(base_path="/models/other"))
    ask("reload of a relative path", models.HandleReloadConfigRequest, reload(base_path="other"))


def predict(
    spec: dict[str, Any] | None = None, *, alias: str = "x", tensor: Any = None, output_filter: Any = ()
) -> predict_pb2.PredictRequest:
    """Return a Predict request of three rows."""
    request = predict_pb2.PredictRequest(model_spec=spec or {"name": MODEL}, output_filter=output_filter)
    request.inputs[alias].CopyFrom(tf.make_tensor_proto([1.0, 2.0, 5.0]) if tensor is None else tensor)
    return request


def of_examples(message: Any, signature: str, count: int = 1) -> Any:
    """Return a Regress or Classify request of so many tf.Examples."""
    request = message(model_spec={"name": MODEL, "signature_name": signature})
    add_examples(request, count)
    return request


def several(*signatures: str) -> inference_pb2.MultiInferenceRequest:
    """Return a MultiInference request of these signatures."""
    request = inference_pb2.MultiInferenceRequest()
    for signature in signatures:
        method = "tensorflow/serving/" + signature.split("_")[0]
        request.tasks.add(model_spec={"name": MODEL, "signature_name": signature}, method_name=method)
    add_examples(request, 1)
    return request


def add_examples(request: Any, count: int) -> None:
    """Put tf.Examples with x = 2 into a request."""
    for _ in range(count):
        features = request.input.example_list.examples.add().features.feature
        features["x"].float_list.value.append(2.0)


def metadata(*fields: str) -> get_model_metadata_pb2.GetModelMetadataRequest:
    """Return a request for these fields of the metadata."""
    return get_model_metadata_pb2.GetModelMetadataRequest(model_spec={"name": MODEL}, metadata_field=fields)


def status(name: str) -> get_model_status_pb2.GetModelStatusRequest:
    """Return a request for a model's status."""
    return get_model_status_pb2.GetModelStatusRequest(model_spec={"name": name})


def reload(base_path: str) -> model_management_pb2.ReloadConfigRequest:
    """Return a new configuration of one model that no server takes."""
    request = model_management_pb2.ReloadConfigRequest()
    platform = "" if base_path.startswith("/") else "tensorflow"
    request.config.model_config_list.config.add(name="other", base_path=base_path, model_platform=platform)
    return request


def short(text: bytes) -> str:
    """Return a text on one line of readable length."""
    line = " ".join(text.decode("utf-8", "replace").split())
    return line if len(line) <= 160 else line[:160] + "..."


if __name__ == "__main__":
    main()
