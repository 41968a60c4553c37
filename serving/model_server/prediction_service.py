"""The methods of PredictionService, from a request in bytes to an answer in bytes.

Requests are parsed here, so that what is large is parsed in the pool's threads and not in the event loop's.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any

from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    prediction_service_pb2,
    regression_pb2,
)

from serving import examples, messages, predict_messages
from serving.dataplane import DataPlane
from serving.dispatch import LARGE_REQUEST, Dispatcher
from serving.errors import Code, ServingError
from serving.metrics import GRPC, Metrics

PREDICTION_SERVICE = prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name

Handler = Callable[[bytes], bytes | Coroutine[Any, Any, bytes]]
"""A request to its answer, or to a coroutine that returns it. It may be called before there is a task."""
_Begun = tuple[tuple[Hashable, ...], Callable[[], bytes]]
"""A request that is parsed: what kind of work it is, the model first; and what does it."""


class PredictionService:
    """Predict, Classify, Regress, MultiInference and GetModelMetadata."""

    def __init__(
        self,
        dataplane: DataPlane,
        dispatcher: Dispatcher,
        *,
        tensor_content: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._dataplane = dataplane
        self._dispatcher = dispatcher
        self._tensor_content = tensor_content

    def handlers(self) -> dict[str, Handler]:
        """Return the methods by their names in the protocol."""
        begins = {
            "Predict": self._begin_predict,
            "Classify": self._begins(classification_pb2.ClassificationRequest, self._classify),
            "Regress": self._begins(regression_pb2.RegressionRequest, self._regress),
            "MultiInference": self._begins(inference_pb2.MultiInferenceRequest, self._multi_inference),
        }
        metadata = self._begins(get_model_metadata_pb2.GetModelMetadataRequest, self._metadata)
        methods: dict[str, Handler] = {
            name: _Method(name, begin, self._dispatcher, self._metrics) for name, begin in begins.items()
        }
        # Not a request for a model's work: TensorFlow Serving does not count it either.
        return methods | {"GetModelMetadata": _Method("GetModelMetadata", metadata, self._dispatcher, None)}

    def _begin_predict(self, data: bytes) -> _Begun:
        request = predict_messages.read(data)
        spec = request.spec
        kind = spec.name, spec.version, spec.label, spec.signature_name
        return kind, partial(self._predict, request)

    def _predict(self, request: predict_messages.Request) -> bytes:
        prediction = self._dataplane.predict(request.spec, request.inputs(), request.output_filter)
        return predict_messages.write(prediction, as_content=self._tensor_content)

    def _begins(self, message: Any, work: Callable[[Any], Any]) -> Callable[[bytes], _Begun]:
        """Return what begins a method whose requests and responses are protobuf's."""

        def begin(data: bytes) -> _Begun:
            request = messages.parsed(message, data)

            def answer() -> bytes:
                response: bytes = work(request).SerializeToString()
                return response

            return _kind(request), answer

        return begin

    def _classify(self, request: Any) -> Any:
        spec = messages.model_spec(request)
        return messages.classification_response(
            self._dataplane.classify(spec, examples.from_input(request.input))
        )

    def _regress(self, request: Any) -> Any:
        spec = messages.model_spec(request)
        return messages.regression_response(self._dataplane.regress(spec, examples.from_input(request.input)))

    def _multi_inference(self, request: Any) -> Any:
        tasks = [(messages.spec_from(task.model_spec), task.method_name) for task in request.tasks]
        inferences = self._dataplane.multi_inference(tasks, examples.from_input(request.input))
        return messages.multi_inference_response(inferences)

    def _metadata(self, request: Any) -> Any:
        spec = messages.model_spec(request)
        messages.check_metadata_fields(request.metadata_field)
        return messages.metadata_response(self._dataplane.metadata(spec), request.metadata_field)


class _Method:
    """Answers the requests of one method, here or in the pool, and counts them.

    As in TensorFlow Serving, only those that succeed have a latency.
    """

    def __init__(
        self, name: str, begin: Callable[[bytes], _Begun], dispatcher: Dispatcher, metrics: Metrics | None
    ) -> None:
        self._name, self._begin, self._dispatcher, self._metrics = name, begin, dispatcher, metrics

    def __call__(self, data: bytes) -> bytes | Coroutine[Any, Any, bytes]:
        """See `Handler`."""
        started, size, model = time.perf_counter(), len(data), ""
        if size >= LARGE_REQUEST:
            return self._later(self._dispatcher.run(self._name, size, partial(self._whole, data)), started)
        try:
            kind, work = self._begin(data)
            key, model = (self._name, kind), str(kind[0])
            pace = self._dispatcher.at_once(key, size)
            if pace is None:
                waiting = self._dispatcher.run(key, size, partial(self._named, model, work))
                return self._later(waiting, started)
            answer = work()
        except Exception as error:
            self._failed(model, error)
            raise
        pace.note(time.perf_counter() - started)
        self._succeeded(model, started)
        return answer

    def _whole(self, data: bytes) -> _Named:
        try:
            kind, work = self._begin(data)
        except Exception as error:
            raise _Failed("") from error
        return self._named(str(kind[0]), work)

    def _named(self, model: str, work: Callable[[], bytes]) -> _Named:
        try:
            return model, work()
        except Exception as error:
            raise _Failed(model) from error

    async def _later(self, waiting: Awaitable[_Named], started: float) -> bytes:
        model = ""
        try:
            model, answer = await waiting
        except _Failed as failed:
            error = failed.__cause__
            assert isinstance(error, Exception)  # It was raised from one.
            self._failed(failed.model, error)
            raise error from None
        except Exception as error:
            self._failed(model, error)
            raise
        self._succeeded(model, started)
        return answer

    def _succeeded(self, model: str, started: float) -> None:
        if self._metrics is not None:
            self._metrics.record(model, Code.OK.name)
            self._metrics.record_latency(model, self._name, GRPC, time.perf_counter() - started)

    def _failed(self, model: str, error: Exception) -> None:
        if self._metrics is not None:
            code = error.code if isinstance(error, ServingError) else Code.INTERNAL
            self._metrics.record(model, code.name)


_Named = tuple[str, bytes]
"""The model that was asked, and its answer."""


class _Failed(Exception):
    """Work failed in the pool, by its cause. `model`: the one that was asked, empty if that is not known."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


def _kind(request: Any) -> tuple[Hashable, ...]:
    if hasattr(request, "tasks"):
        spec = request.tasks[0].model_spec if request.tasks else None
    else:
        spec = request.model_spec
    return ("",) if spec is None else (spec.name, spec.version.value, spec.version_label, spec.signature_name)
