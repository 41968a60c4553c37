"""gRPC over HTTP/2 on asyncio: a server that takes the method handlers of grpc.aio's, for a fraction of its
cost.

    from serving.grpc_transport import Limits, Server

    server = Server(Limits())
    server.add_generic_rpc_handlers((handlers,))
    await server.listen_on(bound_socket)
    ...
    await server.stop(grace=30.0)

frames.py and headers.py know the bytes, stream.py one call's state, sending.py what waits for the client's
windows, connection.py the rules of RFC 9113, calls.py the handlers, server.py the sockets.
"""

from serving.grpc_transport.calls import at_once, runs_at_once
from serving.grpc_transport.headers import Refusal
from serving.grpc_transport.limits import Limits, limits_from
from serving.grpc_transport.server import CallDetails, Server

__all__ = ["CallDetails", "Limits", "Refusal", "Server", "at_once", "limits_from", "runs_at_once"]
