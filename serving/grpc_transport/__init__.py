"""gRPC over HTTP/2 on asyncio: a server that takes the method handlers of grpc.aio's, for a fraction of its
cost.

    from serving.grpc_transport import Limits, Server

    server = Server(Limits())
    server.add_generic_rpc_handlers((handlers,))
    await server.listen_on(bound_socket)
    ...
    await server.stop(grace=30.0)

frames.py and headers.py know the bytes, link.py the rules of RFC 9113, sending.py what waits for the other
side's windows; stream.py knows one call's state, streams.py those of a connection, connection.py how that
begins and ends, calls.py the handlers, server.py the sockets. `serving.grpc_client` is the other side.
"""

from serving.grpc_transport.calls import at_once, runs_at_once
from serving.grpc_transport.headers import Refusal
from serving.grpc_transport.limits import Limits, limits_from
from serving.grpc_transport.server import CallDetails, Server

__all__ = ["CallDetails", "Limits", "Refusal", "Server", "at_once", "limits_from", "runs_at_once"]
