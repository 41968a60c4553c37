"""The gateway's gRPC: TensorFlow Serving's services behind the token check, health and reflection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

from serving.errors import Code, ServingError
from serving.gateway.access import Access, Unauthenticated
from serving.gateway.counting import COUNTED, counted
from serving.grpc_transport import CallDetails, Limits, Refusal, Server
from serving.grpc_transport.sockets import bind
from serving.metrics import Metrics
from serving.model_server.grpc_service import ServiceHost, add_reflection

_HEALTH = "/grpc.health.v1.Health/"
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
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
    """A gRPC server with the gateway's services.

    Args:
        access: the token check; the health service stays open.
        add_services: adds PredictionService and ModelService.
        metrics: where predictions are counted.
    """

    def __init__(self, access: Access, add_services: Callable[[ServiceHost], None], metrics: Metrics) -> None:
        self._server = Server(Limits(), gate=_Gate(access, metrics))
        add_services(self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_reflection((*_SERVICES, health.SERVICE_NAME), self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if it is 0.

        Raises:
            PortUnavailable: it is taken, or not ours to take.
        """
        try:
            sockets = bind(host, port)
        except OSError as error:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise PortUnavailable(
                f"Cannot listen for gRPC on {address}: {error.strerror or error}. Is the port in use? "
                "Choose another with APPLIANCE_GRPC_PORT."
            ) from error
        for bound in sockets:
            await self._server.listen_on(bound)
        chosen: int = sockets[0].getsockname()[1]
        return chosen

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


class _Gate:
    """Refuses calls without the token, and reloads from anyone; counts the others."""

    def __init__(self, access: Access, metrics: Metrics) -> None:
        self._access, self._metrics = access, metrics
        self._counted: dict[str, Any] = {}

    def __call__(self, details: CallDetails, handler: Any) -> Any:
        """Return the handler of the call, which counts, or a refusal."""
        method = details.method
        if not method.startswith(_HEALTH):
            try:
                self._access.check_metadata(details.invocation_metadata)
            except Unauthenticated as error:
                return _refusal(error)
        if method == _RELOAD:
            return _refusal(ReloadRefused())
        if isinstance(handler, Refusal) or method not in COUNTED:
            return handler
        if method not in self._counted:
            self._counted[method] = counted(method, handler, self._metrics)
        return self._counted[method]


def _refusal(error: ServingError) -> Refusal:
    return Refusal(error.grpc_status.value[0], str(error))
