"""PredictionService and ModelService over gRPC: handlers for `serving.grpc_transport`, and for grpc.aio.

Health and reflection are standard services; "" and the services' short names are SERVING once every
configured model has a version available.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2,
)

from serving import messages
from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.errors import InvalidInput, ServingError
from serving.grpc_transport import Server, at_once
from serving.metrics import Metrics
from serving.model_server.prediction_service import PREDICTION_SERVICE, Handler, PredictionService
from serving.model_server.reload import Reloader

log = logging.getLogger(__name__)

MODEL_SERVICE = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
MAX_ERROR_TEXT = 1024
"""Characters of an error text that are sent; TensorFlow Serving cuts there too."""
_HEALTH_POLL_SECONDS = 0.1
_INTERNAL = "Internal error; the server's log has the details."

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


class ModelService:
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, dataplane: DataPlane, reload: Reload | None = None) -> None:
        self._dataplane = dataplane
        self._reload = reload or Reloader(dataplane.manager).reload

    def handlers(self) -> dict[str, Handler]:
        """Return the methods by their names in the protocol."""
        return {"GetModelStatus": self._status, "HandleReloadConfigRequest": self._reload_config}

    async def _status(self, data: bytes) -> bytes:
        request = messages.parsed(get_model_status_pb2.GetModelStatusRequest, data)
        if not request.HasField("model_spec"):
            raise InvalidInput("Missing ModelSpec")
        statuses = self._dataplane.status(messages.spec_from(request.model_spec))
        answer: bytes = messages.status_response(statuses).SerializeToString()
        return answer

    async def _reload_config(self, data: bytes) -> bytes:
        await self._reload(data)
        answer: bytes = model_management_pb2.ReloadConfigResponse().SerializeToString()
        return answer


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


def _answering(name: str, handler: Handler) -> Callable[[bytes, Any], Any]:
    """Return what handles a call for `serving.grpc_transport`, where a quick answer needs no coroutine."""

    @at_once
    def call(data: bytes, context: Any) -> Any:
        try:
            answer = handler(data)
            return answer if isinstance(answer, bytes) else _awaited(name, answer, context)
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

    async def answer(data: bytes) -> bytes:
        answered = handler(data)
        return answered if isinstance(answered, bytes) else await answered

    async def call(data: bytes, context: Any) -> bytes | None:
        return await _awaited(name, answer(data), context)

    return call


async def _awaited(name: str, answer: Awaitable[bytes], context: Any) -> bytes | None:
    try:
        return await answer
    except ServingError as error:
        await context.abort(error.grpc_status, cut(str(error)))
    except Exception:
        log.exception("request_failed", extra={"method": name})
        await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL)
    return None


def cut(text: str) -> str:
    """Return an error text no longer than what is sent."""
    return text if len(text) <= MAX_ERROR_TEXT else text[:MAX_ERROR_TEXT] + "...TRUNCATED"
