"""gRPC over HTTP/2 on asyncio: a client of one server for calls with one message each way, as bytes.

    from serving.grpc_client import CallFailed, Channel

    channel = Channel("127.0.0.1:8500")
    predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    answer = await predict(request, timeout=1.0)
    ...
    await channel.close()

It shares frames, header blocks and flow control with `serving.grpc_transport`, the server. requests.py and
replies.py know what is said, outcomes.py what becomes of a call, calls.py those of a connection,
connection.py how that begins and ends, patience.py for how long, channel.py when there is another.
"""

from serving.grpc_client.channel import Channel, UnaryUnary
from serving.grpc_client.outcomes import CallFailed

__all__ = ["CallFailed", "Channel", "UnaryUnary"]
