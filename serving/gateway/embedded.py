"""The data plane of the embedded runtime, with the gateway's routes in front of the manager's versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from serving.dataplane import DataPlane, ModelSpec
from serving.dispatch import Dispatcher
from serving.errors import InvalidInput
from serving.manager import InUse, ModelManager, VersionStatus
from serving.model_server.grpc_service import ServiceHost, add_services
from serving.model_server.rest import RESTApp
from serving.routing import Routes
from serving.runtime import EmbeddedRuntime


class RoutedDataPlane(DataPlane):
    """Resolves names by the routes at the moment of use: no request falls between a route and its version."""

    def __init__(self, manager: ModelManager, routes: Callable[[], Routes]) -> None:
        super().__init__(manager)
        self._routes = routes

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        """Return the states of all versions, newest first, or of one, given by number or label."""
        routes = self._routes()
        routes.check_model(spec.name)
        if spec.label is not None:
            spec = replace(spec, version=routes.resolve(spec.name, None, spec.label), label=None)
        return super().status(spec)

    def _use(self, spec: ModelSpec) -> InUse:
        if not spec.name:
            raise InvalidInput("ModelSpec has no name specified.")
        return self.manager.use(spec.name, self._routes().resolve(spec.name, spec.version, spec.label))


class EmbeddedPath:
    """How requests reach an embedded runtime: by a function call."""

    def __init__(self, runtime: EmbeddedRuntime, routes: Callable[[], Routes]) -> None:
        self._dataplane = RoutedDataPlane(runtime.manager, routes)
        self._dispatcher = Dispatcher.suited_to(runtime.manager.loading.batching)
        self.rest = RESTApp(self._dataplane, dispatcher=self._dispatcher)

    def add_services(self, server: ServiceHost) -> None:
        """Add PredictionService and ModelService."""
        add_services(server, self._dataplane, dispatcher=self._dispatcher, with_health=False)

    def in_flight(self) -> tuple[tuple[str, int], ...]:
        """Return nothing: the manager itself waits for requests in flight before it unloads a version."""
        return ()

    async def close(self) -> None:
        """Wait for the threads that still work on requests."""
        await asyncio.to_thread(self._dispatcher.close)
