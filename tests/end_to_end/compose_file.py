"""Reads docker-compose.yml, and maps what it says of containers to processes on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.end_to_end.processes import free_port

PROGRAMS = {
    "appliance": [sys.executable, "-m", "appliance.cli"],
    "tensorflow_model_server": [sys.executable, "-m", "serving.model_server"],
    "python": [sys.executable],
    "bash": ["bash"],
}
"""What runs here for a program of a container."""


class MissingVariable(Exception):
    """The file requires a variable that is not set."""


def load(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the file with `${NAME:?text}` and `${NAME:-default}` replaced, as docker compose does it."""

    def value_of(match: re.Match[str]) -> str:
        name, operator, text = match.groups()
        if variables.get(name):
            return variables[name]
        if operator == ":?":
            raise MissingVariable(f"{name}: {text}")
        return text

    return yaml.safe_load(re.sub(r"\$\{(\w+)(:[?-])([^}]*)\}", value_of, path.read_text()))


@dataclass
class Machine:
    """Maps names, ports and folders of the containers to this machine."""

    repository: Path
    scratch: Path
    services: Mapping[str, Any]
    ports: dict[tuple[str, str], int] = field(default_factory=dict)

    def port(self, service: str, number: str) -> int:
        """Return the free port that stands for a port of a container."""
        return self.ports.setdefault((service, number), free_port())

    def command(self, service: str) -> list[str]:
        """Return the command of a service as it runs here."""
        said = self.services[service]
        program, *arguments = [*said.get("entrypoint", []), *said["command"]]
        return [*PROGRAMS[program], *(self.here(service, argument) for argument in arguments)]

    def health_check(self, service: str) -> list[str]:
        """Return the command that tells whether a service is healthy."""
        kind, program, *arguments = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD"
        return [*PROGRAMS[program], *(self.here(service, argument) for argument in arguments)]

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a service."""
        said = self.services[service].get("environment", {})
        # This one is a folder of another container.
        of = {"APPLIANCE_SIDECAR_MODEL_ROOT": "tensorflow-serving"}
        return {name: self.here(of.get(name, service), value) for name, value in said.items()}

    def here(self, service: str, text: str) -> str:
        """Return a value of a service with hosts, ports and folders of this machine."""
        names = "|".join(map(re.escape, self.services))
        text = re.sub(rf"\b({names}):(\d+)", lambda m: f"127.0.0.1:{self.port(m.group(1), m.group(2))}", text)
        text = re.sub(r"127\.0\.0\.1([:/])(8500|8501)\b", lambda m: self._own(service, m), text)
        text = re.sub(r"(--(?:rest_api_)?port=)(\d+)", lambda m: m[1] + str(self.port(service, m[2])), text)
        for inside, outside in self._folders(service).items():
            text = re.sub(rf"(?<![\w/.]){re.escape(inside)}(?=/|$)", str(outside), text)
        return text

    def _own(self, service: str, match: re.Match[str]) -> str:
        return f"127.0.0.1{match[1]}{self.port(service, match[2])}"

    def _folders(self, service: str) -> dict[str, Path]:
        """Return a container's folders with what stands for them: a volume is a link to a shared folder."""
        root = self.scratch / service
        home = root / "var/lib/appliance"
        home.mkdir(parents=True, exist_ok=True)
        folders = {"/var/lib/appliance": home}
        for volume in self.services[service].get("volumes", []):
            source, inside = volume.split(":")[:2]
            shared = self.repository / source if source.startswith(".") else self.scratch / "volumes" / source
            link = root / inside.lstrip("/")
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                if not source.startswith("."):
                    shared.mkdir(parents=True, exist_ok=True)
                link.symlink_to(shared)
            folders[inside] = link
        return dict(sorted(folders.items(), key=lambda pair: -len(pair[0])))
