"""HandleReloadConfigRequest: a whole new configuration, applied to this process's models."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow_serving.apis import model_management_pb2

from serving.errors import InvalidInput, LoadFailed
from serving.manager import ModelConfig, ModelManager
from serving.model_server import config

_POLL_SECONDS = 0.01


class Reloader:
    """Takes ReloadConfigRequests, as bytes."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    async def reload(self, data: bytes) -> None:
        """Apply the whole configuration, then wait for the models that have no version available yet.

        Raises:
            InvalidInput, FailedPrecondition: it is refused; nothing changes.
            LoadFailed: a model did not become available.
        """
        self.apply(data)
        await self.settle(data)

    def check(self, data: bytes) -> None:
        """Refuse what `apply` would refuse, and change nothing."""
        request, configs = _read(data)
        if request.config.WhichOneof("config") is not None:
            self._manager.check(configs)

    def apply(self, data: bytes, *, labels_for_unavailable: bool = False) -> None:
        """Apply the whole configuration; return at once.

        `labels_for_unavailable`: labels may name versions that are not available yet.
        """
        request, configs = _read(data)
        if request.config.WhichOneof("config") is not None:
            self._manager.apply(configs, labels_for_unavailable=labels_for_unavailable)

    async def settle(self, data: bytes) -> None:
        """Wait until each model of the configuration has a version available.

        Raises:
            LoadFailed: one did not become available.
        """
        names = [entry.name for entry in _read(data)[1]]
        await settled(self._manager, names)
        failures = self._manager.failures(names)
        if failures:
            raise LoadFailed(failures)


async def settled(manager: ModelManager, names: list[str]) -> None:
    """Wait until each model has a version available, or none that can become so."""
    while not manager.settled(names):
        await asyncio.sleep(_POLL_SECONDS)  # Ends with the call: the client's deadline cancels it here.


def _read(data: bytes) -> tuple[Any, list[ModelConfig]]:
    try:
        request = model_management_pb2.ReloadConfigRequest.FromString(data)
    except DecodeError as error:
        raise InvalidInput(
            f"The request is not a {model_management_pb2.ReloadConfigRequest.DESCRIPTOR.full_name}: {error}"
        ) from error
    return request, config.model_configs(request.config)
