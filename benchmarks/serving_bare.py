"""The least that can serve a SavedModel from Python: what the model server is measured against.

    python -m benchmarks.serving_bare MODEL_PATH REST_PORT GRPC_PORT (plain|prepared)

One known input, one known output, no checks, no errors, no versions. REST is a uvicorn ASGI function with
orjson, gRPC a grpc.aio handler with tensor_content both ways. `plain` calls `Session.make_callable`;
`prepared` the same callable that the model server uses, which runs in the calling thread: the limit of what
is possible.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grpc
import numpy as np
import orjson
import tensorflow as tf
import uvicorn
import uvloop
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from serving.servable import Servable

Run = Callable[[np.ndarray], np.ndarray]


def plain(path: str) -> Run:
    """Return the model through TensorFlow's public Session API."""
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], path)
    signature = meta_graph.signature_def["serving_default"]
    call = session.make_callable(signature.outputs["y"].name, feed_list=[signature.inputs["x"].name])
    return lambda x: call(x)


def prepared(path: str) -> Run:
    """Return the model through the model server's own prepared callable."""
    servable = Servable.load(path)
    call = servable._callable(servable.signatures["serving_default"], ("y",), pooled=False)
    return lambda x: call((x,))[0]


def rest_app(run: Run) -> Any:
    """Return an ASGI function that answers every request as a predict."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body"):
                break
        x = np.asarray(orjson.loads(body)["instances"], np.float32)
        answer = orjson.dumps({"predictions": run(x)}, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


class Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict, with one known input and output."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802  The protocol's name.
        """Answer."""
        x = request.inputs["x"]
        shape = [dim.size for dim in x.tensor_shape.dim]
        y = self._run(np.frombuffer(x.tensor_content, np.float32).reshape(shape))
        response = predict_pb2.PredictResponse()
        proto = response.outputs["y"]
        proto.dtype = 1
        for size in y.shape:
            proto.tensor_shape.dim.add(size=size)
        proto.tensor_content = y.tobytes()
        return response


async def serve(run: Run, rest_port: int, grpc_port: int) -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Predictions(run), server)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    config = uvicorn.Config(
        rest_app(run),
        host="127.0.0.1",
        port=rest_port,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
    )
    await uvicorn.Server(config).serve()
    await server.stop(None)


def main() -> None:
    """Serve as the command line says."""
    path, rest_port, grpc_port, kind = sys.argv[1:]
    run = {"plain": plain, "prepared": prepared}[kind](path)
    run(np.zeros((1, 20), np.float32))
    gc.collect()
    gc.freeze()
    uvloop.run(serve(run, int(rest_port), int(grpc_port)))


if __name__ == "__main__":
    main()
