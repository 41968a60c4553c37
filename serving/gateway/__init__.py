"""The gateway in front of a runtime: names and labels, the token, REST and gRPC."""

from serving.gateway.gateway import Gateway
from serving.gateway.grpc_server import PortUnavailable
from serving.runtime import EmbeddedRuntime
from serving.sidecar import SidecarRuntime

__all__ = ["EmbeddedRuntime", "Gateway", "PortUnavailable", "SidecarRuntime"]
