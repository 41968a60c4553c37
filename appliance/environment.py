"""The environment variables of the appliance, and those that only look like one: a misspelt one sets nothing.

Imports nothing heavy, for every command asks here before anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

PREFIX = "APPLIANCE_"
SETTINGS = (
    "HOME",
    "DATABASE_URL",
    "ARTIFACT_ROOT",
    "JOBS_ROOT",
    "HOST",
    "REST_PORT",
    "GRPC_PORT",
    "TOKEN",
    "RUNTIME",
    "SIDECAR_GRPC",
    "SIDECAR_REST",
    "SIDECAR_MODEL_ROOT",
    "BATCHING_PARAMETERS_FILE",
    "POLL_WAIT_SECONDS",
    "WEBHOOK_PRIVATE_ADDRESSES",
    "LEASE_SECONDS",
    "STOP_GRACE_SECONDS",
)
"""The fields of `appliance.settings.Settings`, which takes longer to import than many a command runs."""
OTHERS = ("URL", "DEBUG", "TAG")
"""What the client, the command and the compose files read besides. As written: these have no lower case."""
_SERVICE_LINK = re.compile(r"\w+_SERVICE_HOST|\w+_SERVICE_PORT(_\w+)?|\w+_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?")
"""What Kubernetes tells every container of each service, here of one whose name begins with `appliance`."""


def warnings(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that begins like the appliance's and is none, with the nearest one."""
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and not _is_known(name, environment):
            yield (
                f"{name} is ignored: the appliance reads no variable of this name. "
                f"The nearest that it does read is {_nearest(name)}."
            )


def _is_known(name: str, environment: Mapping[str, str]) -> bool:
    # Settings are read in any case, as pydantic-settings does.
    if name.upper().removeprefix(PREFIX) in SETTINGS or name.removeprefix(PREFIX) in OTHERS:
        return True
    return "KUBERNETES_SERVICE_HOST" in environment and bool(_SERVICE_LINK.fullmatch(name))


def _nearest(name: str) -> str:
    import difflib  # only when there is something to tell

    known = (*SETTINGS, *OTHERS)
    (nearest,) = difflib.get_close_matches(name.upper().removeprefix(PREFIX), known, n=1, cutoff=0.0)
    return PREFIX + nearest
