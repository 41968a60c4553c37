"""How requests reach a sidecar: forwarded as bytes, over pooled connections."""

from __future__ import annotations

from collections.abc import Callable

from serving.gateway.grpc_forward import GRPCForwarder
from serving.gateway.http_pool import HTTPPool
from serving.gateway.in_flight import InFlight
from serving.gateway.rest_forward import RESTForwarder
from serving.model_server.grpc_service import ServiceHost
from serving.routing import Routes
from serving.sidecar import SidecarRuntime


class SidecarPath:
    """The two forwarders and what they share. To be made inside the event loop that uses it."""

    def __init__(
        self, runtime: SidecarRuntime, routes: Callable[[], Routes], on_trouble: Callable[[], None]
    ) -> None:
        self._in_flight = InFlight()
        self._pool = HTTPPool(runtime.rest_url)
        self._grpc = GRPCForwarder(runtime.grpc_address, routes, self._in_flight, on_trouble)
        self.rest = RESTForwarder(self._pool, routes, self._in_flight, on_trouble)

    def add_services(self, server: ServiceHost) -> None:
        """Add PredictionService and ModelService."""
        server.add_generic_rpc_handlers((self._grpc,))

    def in_flight(self) -> tuple[tuple[str, int], ...]:
        """Return the (model, version) pairs that requests are on their way to. Any thread may ask."""
        return self._in_flight.versions()

    async def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        await self._grpc.close()
