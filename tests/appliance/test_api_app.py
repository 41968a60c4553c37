"""The application of the gateway's HTTP port, before and behind the server that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pydantic
import pytest

from appliance.api.app import build_app, prepare
from appliance.api.listening import http_config
from appliance.api.operations import RegistryOperations
from serving.gateway.access import Access
from serving.gateway.entrance import RESTEntrance
from serving.metrics import Metrics
from tests.appliance.api_server import House, running_house


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_house(tmp_path_factory.mktemp("house")) as house:
        yield house


def test_nothing_stands_between_the_port_and_the_short_ways_to_predictions(house: House) -> None:
    entrance = RESTEntrance(Access(), lambda: None, Metrics())
    operations = RegistryOperations(house.registry, jobs=house.jobs)
    app = build_app(operations, house.jobs, jobs_root=house.home / "jobs", token="", predictions=entrance)
    config = http_config(app)
    config.load()
    assert config.loaded_app.answer == entrance.answer
    assert config.loaded_app.answer_at_once == entrance.answer_at_once


def test_the_first_request_finds_everything_built(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    build = pydantic.TypeAdapter.__init__

    def note(adapter: Any, *arguments: Any, **named: Any) -> None:
        built.append(arguments)
        build(adapter, *arguments, **named)

    async def move_a_label(app: Any) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            url = "/api/v1/models/prepared/labels/production"
            return (await client.put(url, json={"version": version, "wait_seconds": 0})).status_code

    async def both() -> None:
        operations = RegistryOperations(house.registry, jobs=house.jobs)
        app = build_app(operations, house.jobs, jobs_root=house.home / "jobs", token="", predictions=None)
        await prepare(app)
        assert built
        built.clear()
        assert await move_a_label(app) == 200
        assert not built

    version = house.publish("prepared")
    monkeypatch.setattr(pydantic.TypeAdapter, "__init__", note)
    asyncio.run(both())
