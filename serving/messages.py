"""Requests of the TensorFlow Serving protocol to plain objects, and answers back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from serving import wire
from serving.dataplane import Inference, Metadata, ModelSpec, Prediction
from serving.errors import InvalidInput
from serving.model import VersionStatus
from serving.operations import Classes, Values

SIGNATURE_DEF = "signature_def"


def parsed(message: Any, data: bytes) -> Any:
    """Return a message of a kind from its bytes.

    Raises:
        InvalidInput: they are not one.
    """
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"The request is not a {message.DESCRIPTOR.full_name}: {error}") from error


def model_spec(message: Any) -> ModelSpec:
    """Return the spec in a request.

    Raises:
        InvalidInput: there is none, or it has no name.
    """
    if not message.HasField("model_spec"):
        raise InvalidInput("Missing ModelSpec")
    return spec_from(message.model_spec)


def spec_from(proto: Any) -> ModelSpec:
    """Return a ModelSpec proto as a plain object; a name is required."""
    if not proto.name:
        raise InvalidInput("ModelSpec has no name specified.")
    choice = proto.WhichOneof("version_choice")
    return ModelSpec(
        name=proto.name,
        version=proto.version.value if choice == "version" else None,
        label=proto.version_label if choice == "version_label" else None,
        signature_name=proto.signature_name,
    )


def fill_spec(spec: ModelSpec, proto: Any) -> None:
    """Write a resolved spec into a ModelSpec proto."""
    proto.name = spec.name
    if spec.version is not None:
        proto.version.value = spec.version
    if spec.signature_name:
        proto.signature_name = spec.signature_name


def predict_inputs(request: Any) -> dict[str, np.ndarray]:
    """Return the inputs of a PredictRequest."""
    return {alias: wire.to_array(proto, alias) for alias, proto in request.inputs.items()}


def predict_response(prediction: Prediction, *, as_content: bool = False) -> Any:
    """Return a PredictResponse."""
    response = predict_pb2.PredictResponse()
    fill_spec(prediction.spec, response.model_spec)
    for alias, array in prediction.outputs.items():
        wire.fill_proto(array, response.outputs[alias], as_content=as_content)
    return response


def classification_response(inference: Inference) -> Any:
    """Return a ClassificationResponse."""
    response = classification_pb2.ClassificationResponse()
    fill_spec(inference.spec, response.model_spec)
    _fill_classes(inference.result, response.result)
    return response


def regression_response(inference: Inference) -> Any:
    """Return a RegressionResponse."""
    response = regression_pb2.RegressionResponse()
    fill_spec(inference.spec, response.model_spec)
    _fill_values(inference.result, response.result)
    return response


def multi_inference_response(inferences: Sequence[Inference]) -> Any:
    """Return a MultiInferenceResponse."""
    response = inference_pb2.MultiInferenceResponse()
    for inference in inferences:
        result = response.results.add()
        fill_spec(inference.spec, result.model_spec)
        if isinstance(inference.result, Classes):
            _fill_classes(inference.result, result.classification_result)
        else:
            _fill_values(inference.result, result.regression_result)
    return response


def metadata_response(metadata: Metadata, fields: Sequence[str]) -> Any:
    """Return a GetModelMetadataResponse with the asked fields, of which there is one: `signature_def`."""
    check_metadata_fields(fields)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    fill_spec(metadata.spec, response.model_spec)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in metadata.signatures.items():
        signatures.signature_def[name].CopyFrom(signature.proto)
    packed = any_pb2.Any()
    packed.Pack(signatures)
    response.metadata[SIGNATURE_DEF].CopyFrom(packed)
    return response


def check_metadata_fields(fields: Sequence[str]) -> None:
    """Refuse a metadata request that asks for nothing, or for what there is not.

    Raises:
        InvalidInput: see above.
    """
    if not fields:
        raise InvalidInput("GetModelMetadataRequest must specify at least one metadata_field")
    for field in fields:
        if field != SIGNATURE_DEF:
            raise InvalidInput(f"Metadata field {field} is not supported. Ask for '{SIGNATURE_DEF}'.")


def status_response(statuses: Sequence[VersionStatus]) -> Any:
    """Return a GetModelStatusResponse."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for status in statuses:
        entry = response.model_version_status.add(version=status.version, state=int(status.state))
        entry.status.error_code = int(status.error_code)
        entry.status.error_message = status.error_message
    return response


def _fill_classes(result: Classes | Values, proto: Any) -> None:
    assert isinstance(result, Classes)  # The data plane pairs them.
    some = result.labels if result.labels is not None else result.scores
    assert some is not None  # A classify signature has one of them.
    labels = [[b""] * some.shape[1]] * len(some) if result.labels is None else result.labels.tolist()
    scores = [[0.0] * some.shape[1]] * len(some) if result.scores is None else result.scores.tolist()
    for row_labels, row_scores in zip(labels, scores, strict=True):
        row = proto.classifications.add()
        for label, score in zip(row_labels, row_scores, strict=True):
            row.classes.add(label=label.decode("utf-8", "replace"), score=score)


def _fill_values(result: Classes | Values, proto: Any) -> None:
    assert isinstance(result, Values)  # The data plane pairs them.
    for value in result.values.tolist():
        proto.regressions.add(value=value)
