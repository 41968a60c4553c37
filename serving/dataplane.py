"""What clients can ask of the loaded models, on plain objects. REST and gRPC only translate to and from this.

Everything here blocks for as long as the model takes; `serving.dispatch` says in which thread it should run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from serving import operations
from serving.errors import InvalidInput, UnknownSignature
from serving.manager import InUse, ModelManager
from serving.model import VersionStatus
from serving.operations import Classes, Task, Values
from serving.servable import DEFAULT_SIGNATURE, Servable, Signature


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model is meant. At most one of `version` and `label`; neither: the highest available version.

    In answers `version` and `signature_name` are the resolved ones, and `label` is None.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature_name: str = ""


class Prediction(NamedTuple):
    """The answer to predict: what was used, and its outputs by alias."""

    servable: Servable
    signature: Signature
    outputs: dict[str, np.ndarray]

    @property
    def spec(self) -> ModelSpec:
        """The resolved spec."""
        return _resolved(self.servable, self.signature.name)


@dataclass(frozen=True, slots=True)
class Inference:
    """The answer to classify (`Classes`) or regress (`Values`)."""

    spec: ModelSpec
    result: Classes | Values


@dataclass(frozen=True, slots=True)
class Metadata:
    """The signatures of a loaded model. `spec.signature_name` is empty."""

    spec: ModelSpec
    signatures: Mapping[str, Signature]


Inputs = Mapping[str, np.ndarray] | Callable[[Signature], Mapping[str, np.ndarray]]
"""Inputs by alias; or, where reading them needs the dtypes (JSON), a function that makes them from the
signature."""


class DataPlane:
    """Predict, classify, regress, multi-inference, metadata and status on the models of one manager."""

    def __init__(self, manager: ModelManager, *, check_method_names: bool = False) -> None:
        self.manager = manager
        self._check = check_method_names

    def predict(self, spec: ModelSpec, inputs: Inputs, output_filter: Sequence[str] = ()) -> Prediction:
        """Run a signature.

        Raises:
            ServableNotFound, UnknownLabel: the spec names nothing that is served.
            UnknownSignature, UnknownSignatureKey: the model has no such signature (the latter when `inputs`
            is a mapping). InvalidInput: wrong input names or dtypes, or whatever a function in `inputs`
            raises. ModelFailed: the graph refused the input, or failed.
        """
        with self._use(spec) as servable:
            name = spec.signature_name or DEFAULT_SIGNATURE
            signature = servable.signatures.get(name)
            if callable(inputs):
                if signature is None:
                    text = f'Serving signature name: "{name}" not found in signature def'
                    raise UnknownSignature(text, list(servable.signatures))
                try:
                    inputs = inputs(signature)
                except InvalidInput as error:
                    if hint := _how_to_send_features(signature, servable.signatures):
                        raise InvalidInput(f"{error} {hint}") from error
                    raise
            if self._check and signature is not None:
                operations.check_predict_method(signature)
            outputs = servable.run(name, inputs, output_filter)
            assert signature is not None  # Otherwise run has refused it.
            return Prediction(servable, signature, outputs)

    def classify(self, spec: ModelSpec, examples: Sequence[bytes]) -> Inference:
        """Classify serialized tf.Example protos."""
        with self._use(spec) as servable:
            result = operations.classify(servable, spec.signature_name, examples, check_method=self._check)
            return Inference(_resolved(servable, spec.signature_name), result)

    def regress(self, spec: ModelSpec, examples: Sequence[bytes]) -> Inference:
        """Regress serialized tf.Example protos."""
        with self._use(spec) as servable:
            result = operations.regress(servable, spec.signature_name, examples, check_method=self._check)
            return Inference(_resolved(servable, spec.signature_name), result)

    def multi_inference(
        self, tasks: Sequence[tuple[ModelSpec, str]], examples: Sequence[bytes]
    ) -> list[Inference]:
        """Run several classify and regress signatures of one model over the same examples.

        `tasks` are pairs of spec and method name; the version or label of the first decides.
        """
        if not tasks:
            raise InvalidInput("Inference request must have at least one task.")
        if any(not spec.name for spec, _ in tasks):
            raise InvalidInput("Found ModelSpec with an empty model name.")
        if len({spec.name for spec, _ in tasks}) > 1:
            raise InvalidInput("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
        plan = [Task(spec.signature_name, method) for spec, method in tasks]
        with self._use(tasks[0][0]) as servable:
            results = operations.multi_inference(servable, plan, examples, check_method=self._check)
            return [
                Inference(_resolved(servable, task.signature_name), result)
                for task, result in zip(plan, results, strict=True)
            ]

    def metadata(self, spec: ModelSpec) -> Metadata:
        """Return the signatures of a loaded model."""
        with self._use(spec) as servable:
            return Metadata(ModelSpec(servable.name, servable.version), servable.signatures)

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        """Return the states of all versions the server has seen, newest first, or of one. Labels are ignored.

        Raises:
            NoVersions: it never saw any.
        """
        return self.manager.status(spec.name, spec.version)

    def _use(self, spec: ModelSpec) -> InUse:
        if not spec.name:
            raise InvalidInput("ModelSpec has no name specified.")
        return self.manager.use(spec.name, spec.version, spec.label)


def _how_to_send_features(signature: Signature, signatures: Mapping[str, Signature]) -> str:
    """Return what to do for one who sends features by name to a signature of serialized examples."""
    if not _takes_strings(signature):
        return ""
    others = [name for name, other in signatures.items() if other.inputs and not _takes_strings(other)]
    ways = ["call :classify or :regress", *(f"predict with signature_name '{name}'" for name in others)]
    return (
        f"Signature '{signature.name}' takes strings, such as serialized tf.Examples. "
        f"To send features by name, {', or '.join(ways)}."
    )


def _takes_strings(signature: Signature) -> bool:
    return [spec.dtype_name for spec in signature.inputs.values()] == ["string"]


def _resolved(servable: Servable, signature_name: str) -> ModelSpec:
    return _resolved_spec(servable.name, servable.version, signature_name or DEFAULT_SIGNATURE)


@lru_cache(maxsize=4096)  # To look one up takes a third of the time that it takes to make it.
def _resolved_spec(name: str, version: int, signature_name: str) -> ModelSpec:
    return ModelSpec(name, version, None, signature_name)
