"""Predict, classify, regress and multi-inference on one loaded servable: the rules of each, without lookup
or transport.

Classify and regress feed serialized tf.Example protos to a signature's only input, which must be called
`inputs`, as TensorFlow Serving does (servables/tensorflow/classifier.cc, regressor.cc, multi_inference.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving import dtypes
from serving.errors import Code, FailedPrecondition, InvalidInput, ModelFailed, UnknownSignature, Unsupported
from serving.servable import DEFAULT_SIGNATURE, Servable, Signature

CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"
PREDICT_METHOD = "tensorflow/serving/predict"


@dataclass(frozen=True, slots=True)
class Classes:
    """For each example its classes: labels (bytes) `[batch, n]` or None, scores (float32) `[batch, n]` or
    None."""

    labels: np.ndarray | None
    scores: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Values:
    """One float32 for each example, `[batch]`."""

    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Task:
    """One part of a multi-inference: a signature, and whether to classify or regress with it."""

    signature_name: str
    method_name: str


def check_predict_method(signature: Signature) -> None:
    """Refuse a signature whose method name is not one of TensorFlow Serving's three.

    Raises:
        ModelFailed: INTERNAL, TensorFlow Serving's own code for it.
    """
    if signature.method_name not in (PREDICT_METHOD, CLASSIFY_METHOD, REGRESS_METHOD):
        raise ModelFailed(
            Code.INTERNAL,
            f"Expected prediction signature method_name to be one of {{{PREDICT_METHOD}, {CLASSIFY_METHOD}, "
            f"{REGRESS_METHOD}}}. Was: {signature.method_name}",
        )


def classify(
    servable: Servable, signature_name: str, examples: Sequence[bytes], *, check_method: bool = False
) -> Classes:
    """Classify serialized tf.Example protos."""
    signature = _example_signature(servable, signature_name)
    wanted = _classify_outputs(signature, check_method)
    return _classes(signature, len(examples), servable.run(signature.name, _feed(examples), wanted))


def regress(
    servable: Servable, signature_name: str, examples: Sequence[bytes], *, check_method: bool = False
) -> Values:
    """Regress serialized tf.Example protos."""
    signature = _example_signature(servable, signature_name)
    wanted = _regress_outputs(signature, check_method)
    return _values(len(examples), servable.run(signature.name, _feed(examples), wanted))


def multi_inference(
    servable: Servable, tasks: Sequence[Task], examples: Sequence[bytes], *, check_method: bool = False
) -> list[Classes | Values]:
    """Run several classify and regress signatures over the same examples, in one pass over the shared graph.

    The signatures must be distinct and read the same input tensor.
    """
    plan: list[tuple[Signature, list[str]]] = []
    for task in tasks:
        plan.append(_planned(servable, task, check_method, [signature.name for signature, _ in plan]))
    if len({signature.inputs["inputs"].tensor for signature, _ in plan}) > 1:
        raise InvalidInput("Input tensor must be the same for all Signatures.")
    outputs = servable.run_together([(signature.name, wanted) for signature, wanted in plan], _feed(examples))
    results: list[Classes | Values] = []
    for (signature, _), task, found in zip(plan, tasks, outputs, strict=True):
        if task.method_name == CLASSIFY_METHOD:
            results.append(_classes(signature, len(examples), found))
        else:
            results.append(_values(len(examples), found))
    return results


def _planned(
    servable: Servable, task: Task, check: bool, before: Sequence[str]
) -> tuple[Signature, list[str]]:
    name = task.signature_name or DEFAULT_SIGNATURE
    if name in before:
        raise InvalidInput(f"Duplicate evaluation of signature: {name}")
    signature = servable.signatures.get(name)
    if signature is None:
        raise UnknownSignature(
            f"Requested signature not found in model graph: {name}", list(servable.signatures)
        )
    if task.method_name == CLASSIFY_METHOD:
        return signature, _classify_outputs(signature, check)
    if task.method_name == REGRESS_METHOD:
        return signature, _regress_outputs(signature, check)
    raise Unsupported(
        f"Unsupported signature method_name: {task.method_name}. Use {CLASSIFY_METHOD} or {REGRESS_METHOD}."
    )


def _example_signature(servable: Servable, signature_name: str) -> Signature:
    name = signature_name or DEFAULT_SIGNATURE
    signature = servable.signatures.get(name)
    if signature is None:
        raise UnknownSignature(f"No signature was found with the name: {name}", list(servable.signatures))
    return signature


def _feed(examples: Sequence[bytes]) -> dict[str, np.ndarray]:
    if not examples:
        raise InvalidInput("Input is empty.")
    array = np.empty(len(examples), object)
    array[:] = examples
    return {"inputs": array}


def _check_example_signature(signature: Signature, word: str, method: str, check: bool) -> None:
    if check and signature.method_name != method:
        raise InvalidInput(
            f"Expected {word} signature method_name to be {method}. Was: {signature.method_name}"
        )
    if len(signature.inputs) != 1:
        raise InvalidInput(
            f"Expected one input Tensor. Signature '{signature.name}' has {len(signature.inputs)}: "
            f"{', '.join(signature.inputs)}; call predict with it."
        )
    if "inputs" not in signature.inputs:
        raise FailedPrecondition(
            f"No {word} inputs found in SignatureDef: '{signature.name}' calls its input "
            f"'{next(iter(signature.inputs))}', not 'inputs'. Call predict with it."
        )


def _classify_outputs(signature: Signature, check: bool) -> list[str]:
    _check_example_signature(signature, "classification", CLASSIFY_METHOD, check)
    if len(signature.outputs) not in (1, 2):
        raise InvalidInput(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    wanted = [alias for alias in ("classes", "scores") if alias in signature.outputs]
    if not wanted:
        raise FailedPrecondition(
            'Expected classification signature outputs to contain at least one of "classes" or "scores". '
            f"Signature was: '{signature.name}' with outputs {', '.join(signature.outputs)}."
        )
    return wanted


def _regress_outputs(signature: Signature, check: bool) -> list[str]:
    _check_example_signature(signature, "regression", REGRESS_METHOD, check)
    if len(signature.outputs) != 1:
        raise InvalidInput(
            f"Expected one output Tensor. Signature '{signature.name}' has {len(signature.outputs)}."
        )
    if "outputs" not in signature.outputs:
        raise FailedPrecondition(
            f"No regression outputs found in SignatureDef: '{signature.name}' calls its output "
            f"'{next(iter(signature.outputs))}', not 'outputs'. Call predict with it."
        )
    return ["outputs"]


def _classes(signature: Signature, batch: int, outputs: dict[str, np.ndarray]) -> Classes:
    labels, scores = outputs.get("classes"), outputs.get("scores")
    if labels is not None:
        _check_classes("classes", labels, dtypes.STRING, batch)
    if scores is not None:
        _check_classes("scores", scores, dtypes.FLOAT, batch)
    if labels is not None and scores is not None and labels.shape[1] != scores.shape[1]:
        raise InvalidInput(
            "Tensors class and score should match in dim_size(1). "
            f"Got {labels.shape[1]} vs. {scores.shape[1]} from signature '{signature.name}'."
        )
    return Classes(labels, scores)


def _check_classes(alias: str, array: np.ndarray, dtype: dtypes.DType, batch: int) -> None:
    if array.ndim != 2:
        raise InvalidInput(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}")
    if array.dtype != dtype.numpy:
        raise InvalidInput(f"Expected {alias} Tensor of {_constant(dtype)}. Got: {_given(array)}")
    if len(array) != batch:
        raise InvalidInput(f"Expected {alias} output batch size of {batch}. Got: {len(array)}")


def _values(batch: int, outputs: dict[str, np.ndarray]) -> Values:
    array = outputs["outputs"]
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 1):
        raise InvalidInput(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
            + _shape(array)
        )
    if len(array) != batch:
        raise InvalidInput(f"Input batch size did not match output batch size: {batch} vs. {len(array)}")
    if array.dtype != dtypes.FLOAT.numpy:
        raise InvalidInput(f"Expected output Tensor of DT_FLOAT.  Got: {_given(array)}")
    return Values(array.reshape(batch))


def _shape(array: np.ndarray) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"


def _constant(dtype: Any) -> str:
    return f"DT_{dtype.name.upper()}"


def _given(array: np.ndarray) -> str:
    return _constant(dtypes.BY_NUMPY[array.dtype])
