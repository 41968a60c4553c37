"""A SQL model registry: immutable versions, labels that move by compare-and-set, gates, rollback."""

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
from registry.store import Registry
from registry.webhook_records import Delivery, Webhook

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
