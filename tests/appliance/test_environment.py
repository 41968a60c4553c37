"""Variables that look like settings and are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.cli import cli
from appliance.environment import OTHERS, PREFIX, SETTINGS, warnings
from appliance.settings import Settings

ROOT = Path(__file__).parents[2]
PARTS = ["appliance", "registry", "serving", "examples", "benchmarks", "docs", "docker", "tests", ".ci"]


def test_names_are_those_of_the_settings() -> None:
    assert tuple(name.upper() for name in Settings.model_fields) == SETTINGS


def test_every_variable_that_is_written_anywhere_here_is_known() -> None:
    """Whoever follows the documents, or runs the tests and the compose files, is warned of nothing."""
    files = [*ROOT.iterdir(), *(file for part in PARTS for file in (ROOT / part).rglob("*"))]
    texts = (
        file.read_text(errors="replace")
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    )
    written = {name for text in texts for name in re.findall(r"\bAPPLIANCE_[A-Z][A-Z0-9_]*", text)}
    assert {f"{PREFIX}{name}" for name in ("HOME", "URL", "TAG", "STOP_GRACE_SECONDS")} <= written
    assert list(warnings(dict.fromkeys(written, "1"))) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RESTPORT", "REST_PORT"),
        ("DATABASE", "DATABASE_URL"),
        ("LEASE_SECS", "LEASE_SECONDS"),
        ("TOKNE", "TOKEN"),
        ("Q", ""),
    ],
)
def test_misspelt_name_is_told_with_the_nearest(name: str, nearest: str) -> None:
    (told,) = warnings({PREFIX + name: "1", "HOME": "/root", f"{PREFIX}HOME": "/tmp"})
    assert told.startswith(f"{PREFIX}{name} is ignored: the appliance reads no variable of this name. ")
    assert re.search(rf"nearest that it does read is {PREFIX}{nearest or '[A-Z_]+'}\.$", told)


def test_settings_are_known_in_lower_case_as_they_are_read_and_others_only_as_written() -> None:
    assert list(warnings({f"{PREFIX}{name}".lower(): "1" for name in SETTINGS})) == []
    assert len(list(warnings({f"{PREFIX}{name}".lower(): "1" for name in OTHERS}))) == len(OTHERS)


def test_what_kubernetes_sets_for_a_service_is_no_mistake() -> None:
    links = {
        f"{PREFIX}SERVICE_PORT_REST": "8501",
        f"{PREFIX}GATEWAY_SERVICE_HOST": "10.0.0.1",
        f"{PREFIX}GATEWAY_PORT": "tcp://10.0.0.1:8501",
        f"{PREFIX}GATEWAY_PORT_8501_TCP_ADDR": "10.0.0.1",
        f"{PREFIX}PORT": "tcp://10.0.0.1:8501",
        f"{PREFIX}SERVICE_HOST": "10.0.0.1",
    }
    assert len(list(warnings(links))) == len(links)
    assert list(warnings({**links, "KUBERNETES_SERVICE_HOST": "10.0.0.2"})) == []


def test_command_warns_once_on_standard_error_and_goes_on(tmp_path: Path) -> None:
    variables = {"APPLIANCE_URL": None, "APPLIANCE_HOME": str(tmp_path), f"{PREFIX}RESTPORT": "9000"}
    ran = CliRunner().invoke(cli, ["registry", "list", "--json"], env=variables)
    assert (ran.exit_code, ran.stdout) == (0, "[]\n")
    assert ran.stderr == (
        f"warning: {PREFIX}RESTPORT is ignored: the appliance reads no variable of this name. "
        f"The nearest that it does read is {PREFIX}REST_PORT.\n"
    )
