"""The settings of the appliance: one typed object, read once at an entry point and passed in."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MAX_SECONDS = 86_400.0
"""Longest time that a setting may ask for, in seconds; no clock or lock can wait for infinity."""


class Settings(BaseSettings):
    """Each field is read from the variable `APPLIANCE_<NAME>`, unless that is empty, or given by keyword."""

    model_config = SettingsConfigDict(
        env_prefix="APPLIANCE_", env_ignore_empty=True, extra="forbid", use_attribute_docstrings=True
    )

    home: Path = Field(default_factory=lambda: platformdirs.user_data_path("appliance"))
    """The folder of everything embedded: the database, models, jobs; by default in the user's data folder."""
    database_url: str = ""
    """SQLAlchemy URL of the one database; by default `sqlite:///<home>/appliance.db`."""
    artifact_root: str = ""
    """Where model versions are kept (a folder or an fsspec URL); by default `<home>/models`."""
    jobs_root: Path = Path()
    """Where bundles and model directories of jobs are kept; by default `<home>/jobs`."""
    host: str = "127.0.0.1"
    """The address both ports listen on. Any address but loopback requires `token`."""
    rest_port: int = Field(default=8501, ge=0, le=65535)
    """Port of `/v1/models/...` and `/api/v1/...`; 0 takes a free one."""
    grpc_port: int = Field(default=8500, ge=0, le=65535)
    """Port of TensorFlow Serving's gRPC services; 0 takes a free one."""
    token: str = ""
    """The bearer token every request must carry; empty: none is asked for."""
    runtime: Literal["embedded", "sidecar"] = "embedded"
    """What runs the models: the gateway's own process, or a TensorFlow Serving beside it."""
    sidecar_grpc: str = "127.0.0.1:8500"
    """`host:port` of the sidecar's gRPC services."""
    sidecar_rest: str = "http://127.0.0.1:8501"
    """Base URL of the sidecar's REST service."""
    sidecar_model_root: str = ""
    """The artifact root as the sidecar sees it; by default the same as `artifact_root`."""
    batching_parameters_file: Path | None = None
    """Text file with TensorFlow Serving's BatchingParameters: the embedded runtime runs requests together."""
    poll_wait_seconds: float = Field(default=0.05, gt=0, le=MAX_SECONDS)
    """How long the reconciler waits between two looks at the registry, in seconds."""
    webhook_private_addresses: bool = False
    """Whether webhooks may reach loopback and private networks; by default public addresses only."""
    lease_seconds: float = Field(default=15, gt=0, le=MAX_SECONDS)
    """How long a worker may fall silent before its job goes to another, in seconds."""
    stop_grace_seconds: float = Field(default=60, ge=0, le=MAX_SECONDS)
    """How long a job that is to stop may take for its last checkpoint before it is killed, in seconds."""

    @model_validator(mode="after")
    def _fill_in(self) -> Settings:
        self.home = self.home.expanduser().absolute()
        if not self.database_url:
            self.database_url = f"sqlite:///{self.home / 'appliance.db'}"
        if not self.artifact_root:
            self.artifact_root = str(self.home / "models")
        if self.jobs_root == Path():
            self.jobs_root = self.home / "jobs"
        if not self.sidecar_model_root:
            self.sidecar_model_root = self.artifact_root
        if self.rest_port == self.grpc_port != 0:
            raise ValueError(
                f"APPLIANCE_REST_PORT and APPLIANCE_GRPC_PORT are both {self.rest_port}. Give each its own."
            )
        if not (self.token.isprintable() and self.token == "".join(self.token.split())):
            # The token itself is a secret, and stays out of the message.
            raise ValueError(
                "APPLIANCE_TOKEN holds spaces, line ends or control characters, which no request can carry. "
                "Make one with `openssl rand -hex 32`."
            )
        if not self.token and not is_loopback(self.host):
            raise ValueError(
                f"Cannot listen on {self.host!r} without a token: everyone who reaches it could run code. "
                "Set APPLIANCE_TOKEN, or listen on 127.0.0.1."
            )
        return self


def settings_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables from which another process reads the same settings."""
    values = settings.model_dump().items()
    return {f"APPLIANCE_{name.upper()}": str(value) for name, value in values if value not in ("", None)}


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address, is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
