"""The gRPC side in front of a sidecar: messages go on as bytes; only the ModelSpec is read and replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.errors import InvalidInput, ServingError
from serving.gateway import model_spec
from serving.gateway.in_flight import InFlight
from serving.gateway.sidecar_errors import SidecarLost, is_lost
from serving.grpc_client import CallFailed, Channel, UnaryUnary
from serving.grpc_transport import at_once
from serving.routing import Routes

PREDICTION = "/tensorflow.serving.PredictionService/"
SERVICE = "/tensorflow.serving.ModelService/"


class GRPCForwarder(grpc.GenericRpcHandler):
    """TensorFlow Serving's two services, answered by the sidecar.

    Args:
        address: the sidecar's `host:port`.
        routes: returns the routes in effect.
        in_flight: counts the requests.
        on_trouble: called when the sidecar did not answer, or did not have what it should have.
    """

    def __init__(
        self, address: str, routes: Callable[[], Routes], in_flight: InFlight, on_trouble: Callable[[], None]
    ) -> None:
        self._routes, self._in_flight, self._on_trouble = routes, in_flight, on_trouble
        self._channel = Channel(address)
        rewriters: dict[str, Callable[[bytes], tuple[bytes, str, int]]] = {
            f"{PREDICTION}{name}": self._one_spec
            for name in ("Predict", "Classify", "Regress", "GetModelMetadata")
        }
        rewriters[f"{PREDICTION}MultiInference"] = self._tasks
        self._handlers = {
            method: grpc.unary_unary_rpc_method_handler(self._forward(method, rewriter))
            for method, rewriter in rewriters.items()
        }
        status = self._channel.unary_unary(f"{SERVICE}GetModelStatus")
        self._handlers[f"{SERVICE}GetModelStatus"] = grpc.unary_unary_rpc_method_handler(self._status(status))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, or None for a method that is not one of these."""
        return self._handlers.get(handler_call_details.method)

    async def close(self) -> None:
        """End what is still under way, and hang up."""
        await self._channel.close()

    def _forward(self, method: str, rewriter: Callable[[bytes], tuple[bytes, str, int]]) -> Any:
        call = self._channel.unary_unary(method)

        @at_once
        async def forward(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                message, model, version = rewriter(request)
            except ServingError as error:
                return await _abort(context, error)
            with self._in_flight.request(model, version):
                return await self._relay(call, message, context)

        return forward

    def _status(self, call: UnaryUnary) -> Any:
        @at_once
        async def status(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                spec, rest = model_spec.read_spec(request)
                routes = self._routes()
                routes.check_model(spec.name)
                if spec.version_label:
                    spec.version.value = routes.resolve(spec.name, None, spec.version_label)
            except ServingError as error:
                return await _abort(context, error)
            return await self._relay(call, model_spec.write_spec(spec, rest), context)

        return status

    async def _relay(self, call: UnaryUnary, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return await call(message, timeout=context.time_remaining())
        except CallFailed as error:
            if error.code is grpc.StatusCode.UNAVAILABLE:
                self._on_trouble()
            if error.code is grpc.StatusCode.NOT_FOUND and is_lost(error.details):
                self._on_trouble()
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(SidecarLost()))
            await context.abort(error.code, error.details, tuple(error.metadata))
            raise AssertionError("unreachable: abort raises") from error

    def _one_spec(self, request: bytes) -> tuple[bytes, str, int]:
        spec, rest = model_spec.read_spec(request)
        version = self._resolve(spec)
        return model_spec.write_spec(spec, rest), spec.name, version

    def _tasks(self, request: bytes) -> tuple[bytes, str, int]:
        """The version or label of the first task decides for all, as in TensorFlow Serving."""
        tasks, rest = model_spec.read_tasks(request)
        if not tasks:
            raise InvalidInput("Inference request must have at least one task.")
        first = tasks[0][0]
        version = self._resolve(first)
        for spec, _ in tasks:
            spec.version.value = version
        return model_spec.write_tasks(tasks, rest), first.name, version

    def _resolve(self, spec: ModelSpec) -> int:
        if not spec.name:
            raise InvalidInput("ModelSpec has no name specified.")
        asked = spec.version.value if spec.HasField("version") else None
        version = self._routes().resolve(spec.name, asked, spec.version_label or None)
        spec.version.value = version
        return version


async def _abort(context: grpc.aio.ServicerContext, error: ServingError) -> bytes:
    await context.abort(error.grpc_status, str(error))
    raise AssertionError("unreachable: abort raises")
