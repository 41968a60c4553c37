"""What becomes of a trained model: a version in the registry, perhaps under a label."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

import appliance
from appliance.trainer.task_spec import TaskSpec
from registry import Registry, Version
from registry.errors import Conflict, ModelNotFound
from registry.signatures import read_signatures
from serving import smoke

__all__ = ["libraries", "promote", "publish", "version_of_job"]

LIBRARIES = ("tensorflow", "keras", "numpy")


def version_of_job(registry: Registry, model: str, job: str) -> Version | None:
    """Return the version that an earlier attempt at the job has published, if one has."""
    try:
        found = registry.search_versions(model, job=job, states=["ready"], limit=1).items
    except ModelNotFound:
        return None
    return registry.version(model, found[0].version) if found else None


def publish(
    registry: Registry,
    task: TaskSpec,
    export: str,
    step: int,
    metrics: Mapping[str, Any],
    *,
    data_fingerprint: str = "",
) -> Version:
    """Register an export as the job's version of its model, which is made if it is new.

    Args:
        registry: where to.
        task: the job; its spec names a model.
        export: the folder of the SavedModel.
        step: the global step of its checkpoint.
        metrics: of that checkpoint's evaluation; those that are one number are kept.
        data_fingerprint: of the data, as the user's file tells it.

    Raises:
        RegistryError: the registry refuses it.
    """
    spec = task.spec
    assert spec.model is not None
    registry.create_model(spec.model, exist_ok=True, actor=task.job)
    return registry.publish(
        spec.model,
        export,
        metrics={name: value for name, value in metrics.items() if isinstance(value, int | float)},
        params=spec.params,
        step=step,
        job=task.job,
        source_revision=spec.source_revision,
        data_fingerprint=data_fingerprint,
        libraries=libraries(),
        signatures=read_signatures(export),
    )


def promote(registry: Registry, version: Version, task: TaskSpec) -> dict[str, Any]:
    """Move the label that the job asks for to its version, unless that has been done before.

    Returns:
        What belongs into the job's result: `promoted_to`, or `promotion_refused` with the reason. A model
        that its gate refuses is trained and registered all the same.
    """
    label = task.spec.promote
    if label is None:
        return {}
    history = registry.history(version.model, label)
    # After an earlier attempt someone may have moved the label on, which must stand.
    if not any(promotion.to_version == version.version for promotion in history):
        actor = task.spec.submitted_by or f"job {task.job}"
        try:
            registry.promote(
                version.model,
                version.version,
                label=label,
                actor=actor,
                reason=f"trained by job {task.job}",
                predictor=smoke.predict,
            )
        except Conflict as refusal:
            return {"promotion_refused": str(refusal)}
    return {"promoted_to": label}


def libraries() -> dict[str, str]:
    """Return the versions of what a model's graph and values depend on."""
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "estimator-appliance": appliance.__version__, **versions}
