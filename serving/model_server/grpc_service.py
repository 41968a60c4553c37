"""PredictionService and ModelService over gRPC: handlers for `serving.grpc_transport`, and for grpc.aio.

Requests arrive as bytes and are parsed here, so that what is large is parsed in the pool's threads and not
in the event loop's. Health and reflection are standard services; "" and the services' short names are
SERVING once every configured model has a version available.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from inspect import iscoroutine
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2,
    predict_pb2,
    prediction_service_pb2,
    regression_pb2,
)

from serving import examples, messages
from serving.dataplane import DataPlane
from serving.dispatch import LARGE_REQUEST, Dispatcher
from serving.errors import Code, InvalidInput, ServingError
from serving.grpc_transport import Server, at_once
from serving.metrics import GRPC, Metrics
from serving.model_server.reload import Reloader

log = logging.getLogger(__name__)

PREDICTION_SERVICE = prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name
MODEL_SERVICE = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
MAX_ERROR_TEXT = 1024
"""Characters of an error text that are sent; TensorFlow Serving cuts there too."""
_HEALTH_POLL_SECONDS = 0.1
_INTERNAL = "Internal error; the server's log has the details."

Handler = Callable[[bytes], Any]
"""A request in bytes to the answer's message, or to a coroutine that returns it. It may be called before
there is a task."""
Reload = Callable[[bytes], Awaitable[None]]


class ServiceHost(Protocol):
    """What services are added to: a server of either kind."""

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Any) -> None:
        """Add objects that know the handlers of methods."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Add the methods of a service."""


def add_services(
    server: ServiceHost,
    dataplane: DataPlane,
    *,
    dispatcher: Dispatcher | None = None,
    tensor_content: bool = False,
    with_health: bool = True,
    metrics: Metrics | None = None,
    reload: Reload | None = None,
) -> None:
    """Register PredictionService and ModelService, and unless told otherwise health and reflection, with a
    server.

    `tensor_content`: answer with TensorProto.tensor_content instead of typed fields. `metrics`: where
    predictions are counted. `reload`: what takes a ReloadConfigRequest, in bytes; by default this process's
    models.
    """
    dispatcher = dispatcher or Dispatcher()
    prediction = PredictionService(dataplane, dispatcher, tensor_content=tensor_content, metrics=metrics)
    model = ModelService(dataplane, reload)
    services = {PREDICTION_SERVICE: prediction.handlers(), MODEL_SERVICE: model.handlers()}
    way = _answering if isinstance(server, Server) else _awaiting
    for service, methods in services.items():
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(way(name, handler)) for name, handler in methods.items()
        }
        # As generated code does: which of them a server looks at is its business.
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_registered_method_handlers(service, handlers)
    if with_health:
        health_pb2_grpc.add_HealthServicer_to_server(Health(dataplane), server)
        names = (
            PREDICTION_SERVICE,
            MODEL_SERVICE,
            health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        )
        add_reflection(names, server)


def add_reflection(services: Iterable[str], server: ServiceHost) -> None:
    """Let a server say what services it has, and of what messages they are made."""
    servicer = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


class PredictionService:
    """Predict, Classify, Regress, MultiInference and GetModelMetadata: protos in bytes to the data plane and
    back."""

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
        return {
            "Predict": self._inference("Predict", predict_pb2.PredictRequest, self._predict),
            "Classify": self._inference("Classify", classification_pb2.ClassificationRequest, self._classify),
            "Regress": self._inference("Regress", regression_pb2.RegressionRequest, self._regress),
            "MultiInference": self._inference(
                "MultiInference", inference_pb2.MultiInferenceRequest, self._multi_inference
            ),
            "GetModelMetadata": self._inference(
                "GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest, self._metadata
            ),
        }

    def _inference(self, name: str, message: Any, work: Callable[[Any], Any]) -> Handler:
        dispatcher = self._dispatcher

        def handle(data: bytes) -> Any:
            size = len(data)
            if size >= LARGE_REQUEST:
                return dispatcher.run(name, size, lambda: work(_parsed(message, data)))
            request = _parsed(message, data)
            kind = name, *_kind(request)
            pace = dispatcher.at_once(kind, size)
            if pace is None:
                return dispatcher.run(kind, size, partial(work, request))
            started = time.perf_counter()
            response = work(request)
            pace.note(time.perf_counter() - started)
            return response

        if self._metrics is None or name == "GetModelMetadata":
            return handle
        return _counted(name, message, handle, self._metrics)

    def _predict(self, request: Any) -> Any:
        spec = messages.model_spec(request)
        prediction = self._dataplane.predict(spec, messages.predict_inputs(request), request.output_filter)
        return messages.predict_response(prediction, as_content=self._tensor_content)

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


class ModelService:
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, dataplane: DataPlane, reload: Reload | None = None) -> None:
        self._dataplane = dataplane
        self._reload = reload or Reloader(dataplane.manager).reload

    def handlers(self) -> dict[str, Handler]:
        """Return the methods by their names in the protocol."""
        return {"GetModelStatus": self._status, "HandleReloadConfigRequest": self._reload_config}

    async def _status(self, data: bytes) -> Any:
        request = _parsed(get_model_status_pb2.GetModelStatusRequest, data)
        if not request.HasField("model_spec"):
            raise InvalidInput("Missing ModelSpec")
        return messages.status_response(self._dataplane.status(messages.spec_from(request.model_spec)))

    async def _reload_config(self, data: bytes) -> Any:
        await self._reload(data)
        return model_management_pb2.ReloadConfigResponse()


class Health(health_pb2_grpc.HealthServicer):
    """The standard health service; SERVING once every configured model has a version available."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._manager = dataplane.manager
        self._services = {"", "PredictionService", "ModelService", PREDICTION_SERVICE, MODEL_SERVICE}

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  The protocol's name.
        """Answer once."""
        if request.service not in self._services:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"Unknown service '{request.service}'. Known: {', '.join(sorted(self._services - {''}))}.",
            )
        return health_pb2.HealthCheckResponse(status=self._state())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802  The protocol's name.
        """Answer now and at every change."""
        last = None
        while True:
            known = request.service in self._services
            state = self._state() if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if state != last:
                last = state
                yield health_pb2.HealthCheckResponse(status=state)
            await asyncio.sleep(_HEALTH_POLL_SECONDS)

    def _state(self) -> int:
        ready = all(self._manager.available(entry.name) for entry in self._manager.configs())
        states = health_pb2.HealthCheckResponse
        return states.SERVING if ready else states.NOT_SERVING


def _counted(name: str, message: Any, handler: Handler, metrics: Metrics) -> Handler:
    """Count calls; as in TensorFlow Serving, only those that succeed have a latency."""

    def succeeded(response: Any, started: float) -> Any:
        model = response.results[0].model_spec.name if name == "MultiInference" else response.model_spec.name
        metrics.record(model, Code.OK.name)
        metrics.record_latency(model, name, GRPC, time.perf_counter() - started)
        return response

    def failed(error: Exception, data: bytes) -> None:
        code = error.code if isinstance(error, ServingError) else Code.INTERNAL
        metrics.record(_model_name(message, data), code.name)

    async def later(waiting: Awaitable[Any], data: bytes, started: float) -> Any:
        try:
            return succeeded(await waiting, started)
        except Exception as error:
            failed(error, data)
            raise

    def handle(data: bytes) -> Any:
        started = time.perf_counter()
        try:
            response = handler(data)
        except Exception as error:
            failed(error, data)
            raise
        return later(response, data, started) if iscoroutine(response) else succeeded(response, started)

    return handle


def _model_name(message: Any, data: bytes) -> str:
    try:
        kind = _kind(message.FromString(data))
    except DecodeError:
        return ""
    return str(kind[0]) if kind else ""


def _answering(name: str, handler: Handler) -> Callable[[bytes, Any], Any]:
    """Return what handles a call for `serving.grpc_transport`, where a quick answer needs no coroutine."""

    @at_once
    def call(data: bytes, context: Any) -> Any:
        try:
            response = handler(data)
            if iscoroutine(response):
                return _awaited(name, response, context)
            return response.SerializeToString()
        except ServingError as error:
            code, text = error.grpc_status, cut(str(error))
        except Exception:
            log.exception("request_failed", extra={"method": name})
            code, text = grpc.StatusCode.INTERNAL, _INTERNAL
        context.set_code(code)
        context.set_details(text)
        return b""

    return call


def _awaiting(name: str, handler: Handler) -> Callable[[bytes, Any], Awaitable[bytes | None]]:
    """Return what handles a call for grpc.aio, which takes nothing but coroutine functions."""

    async def respond(data: bytes) -> Any:
        response = handler(data)
        return await response if iscoroutine(response) else response

    async def call(data: bytes, context: Any) -> bytes | None:
        return await _awaited(name, respond(data), context)

    return call


async def _awaited(name: str, response: Awaitable[Any], context: Any) -> bytes | None:
    try:
        message = await response
        data: bytes = message.SerializeToString()
    except ServingError as error:
        await context.abort(error.grpc_status, cut(str(error)))
    except Exception:
        log.exception("request_failed", extra={"method": name})
        await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL)
    else:
        return data
    return None


def cut(text: str) -> str:
    """Return an error text no longer than what is sent."""
    return text if len(text) <= MAX_ERROR_TEXT else text[:MAX_ERROR_TEXT] + "...TRUNCATED"


def _parsed(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"The request is not a {message.DESCRIPTOR.full_name}: {error}") from error


def _kind(request: Any) -> tuple[Any, ...]:
    spec = (
        request.tasks[0].model_spec
        if hasattr(request, "tasks") and request.tasks
        else getattr(request, "model_spec", None)
    )
    if spec is None:
        return ()
    return spec.name, spec.version.value, spec.version_label, spec.signature_name
