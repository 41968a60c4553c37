"""A SQL model registry: immutable versions, labels that move by compare-and-set, gates, rollback.

The records and errors come with the package, SQLAlchemy not before `Registry` is asked for: who only handles
what a registry returned, or a command that talks to a server, starts at once.
"""

from typing import TYPE_CHECKING

from registry.errors import RegistryError
from registry.listings import ModelSummary, Page, VersionSummary
from registry.records import (
    Approval,
    Damage,
    Event,
    FileDigest,
    Gate,
    GateCheck,
    GateReport,
    Model,
    ModelState,
    Promotion,
    Retention,
    ServingReport,
    ServingTarget,
    Swept,
    Verification,
    Version,
)
from registry.webhook_records import Delivery, Webhook

if TYPE_CHECKING:
    from registry.store import Registry

__all__ = [
    "Approval",
    "Damage",
    "Delivery",
    "Event",
    "FileDigest",
    "Gate",
    "GateCheck",
    "GateReport",
    "Model",
    "ModelState",
    "ModelSummary",
    "Page",
    "Promotion",
    "Registry",
    "RegistryError",
    "Retention",
    "ServingReport",
    "ServingTarget",
    "Swept",
    "Verification",
    "Version",
    "VersionSummary",
    "Webhook",
]


def __getattr__(name: str) -> object:
    """Import `Registry` when it is asked for."""
    if name == "Registry":
        from registry.store import Registry

        return Registry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
