"""What the control plane says of itself: the OpenAPI description, its page, and answers that keep to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from appliance.api import responses
from appliance.cli.direct import ROUTES
from tests.appliance.api_server import House, running_house


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_house(tmp_path_factory.mktemp("house")) as running:
        yield running


@pytest.fixture(scope="module")
def description(house: House) -> dict[str, Any]:
    return httpx.get(f"{house.url}/api/v1/openapi.json").raise_for_status().json()


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path.removeprefix("/api/v1"), operation


def test_every_route_says_what_it_does_and_where_it_belongs(description: dict[str, Any]) -> None:
    known = {tag["name"] for tag in description["tags"]}
    for method, path, operation in operations(description):
        assert operation["description"].endswith((".", ";")), (method, path)
        assert set(operation["tags"]) <= known, (method, path)
        assert operation["tags"], (method, path)
        for parameter in operation.get("parameters", ()):
            if path.startswith(("/models", "/webhooks")):
                assert parameter["description"], (method, path, parameter["name"])


def test_routes_of_the_registry_say_what_they_answer(description: dict[str, Any]) -> None:
    for method, path, operation in operations(description):
        told = operation["responses"]
        success = next(told[status] for status in ("200", "201", "204") if status in told)
        if path.startswith(("/models", "/webhooks")) and "application/json" in success.get("content", {}):
            schema = success["content"]["application/json"]["schema"]
            assert "$ref" in schema, (method, path)
            assert "ErrorBody" in str(operation["responses"]["404"]), (method, path)


def test_command_without_a_server_knows_the_same_routes(description: dict[str, Any]) -> None:
    served = {
        (method, path)
        for method, path, _ in operations(description)
        if path.startswith(("/models", "/webhooks", "/gc")) and not path.endswith("/card")
    }
    assert served == set(ROUTES)


def test_page_shows_every_route_and_loads_nothing(house: House, description: dict[str, Any]) -> None:
    page = httpx.get(f"{house.url}/api/v1/docs").raise_for_status()
    assert page.headers["content-type"].startswith("text/html")
    for method, path, _ in operations(description):
        assert f"{method} /api/v1{path}<" in page.text
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_answers_are_what_the_description_says(house: House) -> None:
    house.publish("told", metrics={"auc": 0.7, "loss": float("nan")}, tags={"team": "ads"})
    house.publish("told", metrics={"auc": 0.8}, params={"units": [3, 2]})
    with httpx.Client(base_url=f"{house.url}/api/v1/models/told") as http:

        def check(kind: type[BaseModel], method: str, path: str, **request: Any) -> BaseModel:
            answer = http.request(method, path or str(http.base_url).rstrip("/"), **request)
            return kind.model_validate(answer.raise_for_status().json(), strict=False)

        check(responses.GateBody, "PUT", "/gates/production", json={"rules": ["auc >= 0.7"]})
        check(responses.GateReportBody, "GET", "/gates/production/report?version=1")
        check(responses.PromotionBody, "PUT", "/labels/production", json={"version": 1})
        check(responses.PromotionBody, "PUT", "/labels/production", json={"version": 2})
        check(responses.PromotionBody, "POST", "/labels/production/rollback", json={})
        check(responses.LabelsBody, "GET", "/labels")
        check(responses.ModelBody, "PATCH", "", json={"tags": {"tier": "1"}})
        check(responses.VersionBody, "PATCH", "/versions/2", json={"description": "wider"})
        check(responses.VersionBody, "GET", "/versions/production")
        page = check(responses.HistoryBody, "GET", "/history?limit=2")
        assert [move.id for move in page.promotions][-1] == page.next_before
        check(responses.VersionsBody, "GET", "/versions?metric=auc%20%3E%200.75&tag=team&limit=1")
        check(responses.ModelsBody, "GET", f"{house.url}/api/v1/models?name=to*&tag=tier=1")
        refused = http.get("/versions", params={"metric": "auc above 1"})
        assert refused.status_code == 400
        assert responses.ErrorBody.model_validate(refused.json()).error.code == "invalid_input"
        assert http.get("/versions?metrics=auc").status_code == 422, (
            "an unknown parameter is a misspelled one"
        )
