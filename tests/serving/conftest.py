"""What several tests of serving share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.serving.gateway_support import ModelServer


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """A model server that runs as a sidecar; one for all, as it starts slowly. So model names must differ."""
    from tests.serving.gateway_support import ModelServer  # Here, as it brings TensorFlow with it.

    server = ModelServer(tmp_path_factory.mktemp("model_server"))
    server.start()
    yield server
    server.kill()
