"""The services of docker-compose.yml, as processes of this machine: the main job goes through them.

The commands, environments and health checks are those of the file. PostgreSQL comes from a pip package, and
`serving.model_server` stands in TensorFlow Serving's place with the very same flags.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from appliance.client import Client, Unauthorized
from tests.end_to_end.compose_file import Machine, MissingVariable, load
from tests.end_to_end.main_job import MainJob
from tests.end_to_end.processes import running, wait_until

REPOSITORY = Path(__file__).parents[2]
COMPOSE = REPOSITORY / "docker-compose.yml"
SECRETS = {"APPLIANCE_TOKEN": "t0ken", "POSTGRES_PASSWORD": "passw0rd"}


@pytest.fixture
def services() -> dict[str, Any]:
    return load(COMPOSE, SECRETS)["services"]


@pytest.mark.parametrize("name", SECRETS)
def test_compose_needs_its_secrets(name: str) -> None:
    with pytest.raises(MissingVariable, match=name):
        load(COMPOSE, {other: value for other, value in SECRETS.items() if other != name})


def test_compose_publishes_the_gateway_and_nothing_else(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "tensorflow-serving", "trainer", "gateway"}
    assert {name: service.get("ports") for name, service in services.items() if "ports" in service} == {
        "gateway": ["8500:8500", "8501:8501"]
    }
    assert all("healthcheck" in service for service in services.values())
    named = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert {name for name in named if not name.startswith(".")} == set(load(COMPOSE, SECRETS)["volumes"])
    assert services["trainer"]["image"] == services["gateway"]["image"]
    assert (REPOSITORY / services["trainer"]["build"]["dockerfile"]).is_file()


def test_gpu_override_changes_images_only(services: dict[str, Any]) -> None:
    override = load(REPOSITORY / "docker-compose.gpu.yml", {})["services"]
    assert override["trainer"]["image"] == override["gateway"]["image"] != services["trainer"]["image"]
    assert {key for service in override.values() for key in service} == {"image", "build", "deploy"}
    assert (REPOSITORY / override["trainer"]["build"]["dockerfile"]).is_file()


def test_main_job_goes_through_the_services(
    services: dict[str, Any], postgres_server: str, tmp_path: Path
) -> None:
    machine = Machine(REPOSITORY, tmp_path, services)
    make_database(postgres_server, services["postgres"]["environment"])
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                running(name, machine.command(name), environment_of(machine, name, postgres_server), tmp_path)
            )
            for name in ("tensorflow-serving", "trainer", "gateway")
        ]
        for process in processes:
            check = machine.health_check(process.name)
            environment = environment_of(machine, process.name, postgres_server)
            healthy = partial(is_healthy, check, environment)
            wait_until(healthy, f"{process.name} is healthy", *processes)
        url = f"http://127.0.0.1:{machine.port('gateway', '8501')}"
        with Client(url, token="") as stranger, pytest.raises(Unauthorized):
            stranger.models()
        with Client(url, token=SECRETS["APPLIANCE_TOKEN"]) as client:
            grpc_address = f"127.0.0.1:{machine.port('gateway', '8500')}"
            MainJob(client, grpc_address, SECRETS["APPLIANCE_TOKEN"]).run()
        for process in reversed(processes):
            assert process.stop() == 0, process.output


def environment_of(machine: Machine, service: str, postgres_server: str) -> dict[str, str]:
    """Return a service's environment, with PostgreSQL's socket in the place of its host."""
    environment = machine.environment(service)
    if "APPLIANCE_DATABASE_URL" in environment:
        url = make_url(environment["APPLIANCE_DATABASE_URL"])
        socket_folder = make_url(postgres_server).query["host"]
        url = url._replace(host=None, port=None).update_query_dict({"host": str(socket_folder)})
        environment["APPLIANCE_DATABASE_URL"] = url.render_as_string(hide_password=False)
    if service == "gateway":
        # A container has its ports for itself.
        environment["APPLIANCE_REST_PORT"] = str(machine.port(service, "8501"))
        environment["APPLIANCE_GRPC_PORT"] = str(machine.port(service, "8500"))
    return environment


def make_database(server: str, environment: dict[str, str]) -> None:
    """Make the user and the database that the image of PostgreSQL makes from its environment."""
    user, password = environment["POSTGRES_USER"], environment["POSTGRES_PASSWORD"]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'")
        connection.execute(f"CREATE DATABASE {environment['POSTGRES_DB']} OWNER {user}")


def is_healthy(check: list[str], environment: dict[str, str]) -> bool:
    """Run a health check, as Docker does."""
    return (
        subprocess.run(check, env={**os.environ, **environment}, capture_output=True, timeout=60).returncode
        == 0
    )
