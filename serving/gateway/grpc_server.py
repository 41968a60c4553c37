"""The gateway's gRPC: TensorFlow Serving's services behind the token check, health and reflection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

from serving.errors import Code, ServingError
from serving.gateway.access import Access, Unauthenticated
from serving.gateway.counting import COUNTED, counted
from serving.metrics import Metrics

_HEALTH = "/grpc.health.v1.Health/"
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Without this a second server on the same port gets every other connection instead of an error.
    ("grpc.so_reuseport", 0),
)
_SERVICES = tuple(
    service.full_name
    for module in (prediction_service_pb2, model_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)


class ReloadRefused(ServingError):
    """The registry alone says what is loaded."""

    code = Code.PERMISSION_DENIED

    def __str__(self) -> str:
        return (
            "HandleReloadConfigRequest is refused: what this gateway serves is decided by the registry. "
            "Promote a version through it: PUT /api/v1/models/MODEL/labels/production, "
            "or `appliance registry promote MODEL VERSION`."
        )


class PortUnavailable(OSError):
    """The address cannot be listened on."""


class GRPCServer:
    """A grpc.aio server with the gateway's services.

    Args:
        access: the token check; the health service stays open.
        add_services: adds PredictionService and ModelService.
        metrics: where predictions are counted.
    """

    def __init__(
        self, access: Access, add_services: Callable[[grpc.aio.Server], None], metrics: Metrics
    ) -> None:
        self._server = grpc.aio.server(interceptors=(_Gate(access, metrics),), options=_OPTIONS)
        add_services(self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if it is 0.

        Raises:
            PortUnavailable: it is taken, or not ours to take.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise PortUnavailable(
                f"Cannot listen for gRPC on {address}: {error}. Is the port in use? "
                "Choose another with APPLIANCE_GRPC_PORT."
            ) from error
        await self._server.start()
        return bound

    async def set_health(self, serving: bool) -> None:
        """Say to health checks whether requests can be answered."""
        status = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *_SERVICES):
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        """Tell health checks, take no more requests, and give those in flight `grace_seconds` to end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)


class _Gate(grpc.aio.ServerInterceptor):
    """Refuses calls without the token, and reloads from anyone; counts the others."""

    def __init__(self, access: Access, metrics: Metrics) -> None:
        self._access, self._metrics = access, metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the call: the real one, or one that refuses."""
        method = handler_call_details.method
        if not method.startswith(_HEALTH):
            try:
                self._access.check_metadata(_metadata(handler_call_details))
            except Unauthenticated as error:
                return _refusal(error)
        if method == _RELOAD:
            return _refusal(ReloadRefused())
        handler = await continuation(handler_call_details)
        return counted(method, handler, self._metrics) if handler and method in COUNTED else handler


def _metadata(details: grpc.HandlerCallDetails) -> Iterable[tuple[str, str | bytes]]:
    return details.invocation_metadata or ()


def _refusal(error: ServingError) -> Any:
    async def refuse(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(error.grpc_status, str(error))
        raise AssertionError("unreachable: abort raises")

    return grpc.unary_unary_rpc_method_handler(refuse)
