"""Drives a TensorFlow Serving (or `python -m serving.model_server`) over its ModelService.

What TensorFlow Serving does, and what follows (facts read from its sources):

* A reload replaces the whole list of models: every call names all of them, with explicit `specific` versions.
* A label may only name a version that is AVAILABLE when the call comes, or the whole call is refused. So
  versions go first, and labels follow when GetModelStatus says AVAILABLE; the reconciler passes labels of
  such versions only.
* The call waits for models that are new, and holds off the next call meanwhile. So it runs in the background,
  one at a time.
* It does not wait for new versions of known models, and a load that fails later is seen in GetModelStatus
  alone.
* A failed version is not tried again until a configuration without it, and its END with the old error stays
  listed.
* There is no call that lists the models, and after a restart none is loaded: a version that was asked for and
  that GetModelStatus does not know is asked for again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2, model_service_pb2_grpc

from serving.runtime import Load, RuntimeUnavailable, StaleEnds, States, VersionState

log = logging.getLogger(__name__)

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""No limit of our own on messages; a sidecar that comes back is noticed within a second."""
STATUS_TIMEOUT_SECONDS = 5.0
RELOAD_TIMEOUT_SECONDS = 30.0
RESEND_SECONDS = (0.2, 5.0)
"""The first and the longest pause before a configuration is sent again."""
BLOCKED_SECONDS = 300.0
"""The pause after a call that ran into its deadline, unless the configuration changes."""


class SidecarRuntime:
    """A TensorFlow Serving that this gateway alone configures.

    Args:
        grpc_address: `host:port` of its gRPC services.
        rest_url: its REST service, like `http://127.0.0.1:8501`; the gateway forwards there.
        artifact_root: the registry's artifact root, with which the base paths of the models begin.
        model_root: the same place as the sidecar sees it, an absolute path or a URL; by default the same.
    """

    kind = "sidecar"

    def __init__(
        self, grpc_address: str, rest_url: str, *, artifact_root: str = "", model_root: str = ""
    ) -> None:
        self.grpc_address, self.rest_url = grpc_address, rest_url
        self._artifact_root, self._model_root = artifact_root.rstrip("/"), model_root.rstrip("/")
        self._channel = grpc.insecure_channel(grpc_address, options=CHANNEL_OPTIONS)
        self._service = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._states: dict[str, dict[int, VersionState]] = {}
        self._call: Any = None
        self._sent: tuple[Load, ...] = ()
        self._accepted: tuple[Load, ...] | None = None
        self._stale = StaleEnds()
        self._send_at, self._pause = 0.0, RESEND_SECONDS[0]

    def states(self, models: Iterable[str]) -> States:
        """Return what GetModelStatus says of each version of these models.

        Raises:
            RuntimeUnavailable: the sidecar does not answer.
        """
        calls = {}
        for model in models:
            request = get_model_status_pb2.GetModelStatusRequest()
            request.model_spec.name = model
            calls[model] = self._service.GetModelStatus.future(request, timeout=STATUS_TIMEOUT_SECONDS)
        self._states = {model: self._versions(model, call) for model, call in calls.items()}
        return self._states

    def _versions(self, model: str, call: Any) -> dict[int, VersionState]:
        try:
            response = call.result()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return {}
            self._send_at = 0.0  # who comes back may have forgotten everything
            raise self._unavailable(error) from error
        return {
            status.version: self._stale.judge(model, status.version, _version_state(status))
            for status in response.model_version_status
        }

    def apply(self, loads: Sequence[Load]) -> None:
        """Send the configuration in the background if the sidecar does not have it.

        Raises:
            RuntimeUnavailable: the last call did not reach the sidecar.
        """
        if self._call is not None:
            if not self._call.done():
                return
            self._finish()
        wanted = tuple(loads)
        if wanted == self._accepted and not self._forgotten(wanted):
            return
        now = time.monotonic()
        if wanted != self._sent:
            self._pause = RESEND_SECONDS[0]
        elif now < self._send_at:
            return
        self._send_at, self._pause = now + self._pause, min(2 * self._pause, RESEND_SECONDS[1])
        self._stale.asked(self._accepted or (), wanted, self._states)
        log.info("sidecar_configured", extra={"models": {load.name: load.versions for load in wanted}})
        self._sent = wanted
        self._call = self._service.HandleReloadConfigRequest.future(
            self._request(wanted), timeout=RELOAD_TIMEOUT_SECONDS
        )

    def close(self) -> None:
        """Close the channel; the sidecar goes on serving what it has."""
        self._channel.close()

    def base_path(self, path: str) -> str:
        """Return a base path of the registry as the sidecar sees it."""
        if self._model_root and path.startswith(f"{self._artifact_root}/"):
            return self._model_root + path.removeprefix(self._artifact_root)
        return path

    def _finish(self) -> None:
        """Take note of how the last call ended."""
        call, self._call = self._call, None
        error = call.exception()
        if error is None:
            self._accepted = self._sent
            return
        log.warning("sidecar_refused", extra={"code": error.code().name, "error": error.details()})
        if "did not become available" in (error.details() or ""):
            # Of a new model. The configuration counts all the same; GetModelStatus says which failed and why.
            self._accepted = self._sent
            return
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            # TensorFlow Serving has taken it, and one of its threads waits for a new model, the lock held: as
            # long as the model loads, or for ever if it has no such path. Another call would hold another.
            self._accepted, self._send_at = self._sent, time.monotonic() + BLOCKED_SECONDS
            return
        self._accepted = None
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            raise self._unavailable(error) from error

    def _forgotten(self, wanted: Sequence[Load]) -> bool:
        """Return whether the sidecar does not know what it was asked for: it has restarted since."""
        return any(
            version not in self._states.get(load.name, {}) for load in wanted for version in load.versions
        )

    def _request(self, loads: Sequence[Load]) -> model_management_pb2.ReloadConfigRequest:
        request = model_management_pb2.ReloadConfigRequest()
        models = request.config.model_config_list
        models.SetInParent()  # an empty list is a list too
        for load in loads:
            config = models.config.add(
                name=load.name, base_path=self.base_path(load.base_path), model_platform="tensorflow"
            )
            config.model_version_policy.specific.versions.extend(load.versions)
            config.version_labels.update(load.labels)
        return request

    def _unavailable(self, error: Any) -> RuntimeUnavailable:
        return RuntimeUnavailable(
            f"Cannot reach the model server at {self.grpc_address}: {error.code().name}: {error.details()}. "
            "Start it, or correct APPLIANCE_SIDECAR_GRPC; the gateway keeps trying."
        )


def _version_state(status: get_model_status_pb2.ModelVersionStatus) -> VersionState:
    code, message = status.status.error_code, status.status.error_message
    name = get_model_status_pb2.ModelVersionStatus.State.Name(status.state)
    return VersionState(name, message or (f"error code {code}" if code else ""))
