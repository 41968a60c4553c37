"""Ray Serve: `python ray_server.py MODEL_PATH REST_PORT GRPC_PORT`.

Set up as https://docs.ray.io/en/latest/serve says: one deployment with one replica, asked over HTTP and by
TensorFlow Serving's own gRPC service. Ray runs its proxy, controller and replica in processes of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# The proxy imports TensorFlow for the gRPC service; on a busy machine that takes more than its five seconds.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")

import numpy as np
import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions
from ray.serve.schema import LoggingConfig
from starlette.requests import Request

SERVICER = "tensorflow_serving.apis.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server"


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=64,
    ray_actor_options={"num_cpus": 1},
    logging_config=LoggingConfig(enable_access_log=False),
)
class Model:
    """x to y."""

    def __init__(self, path: str) -> None:
        import tensorflow as tf

        self.module = tf.saved_model.load(path)
        self.call = self.module.signatures["serving_default"]
        self.tf = tf

    def run(self, x: np.ndarray) -> np.ndarray:
        """Run the model."""
        return self.call(x=self.tf.constant(x))["y"].numpy()

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer HTTP."""
        x = np.asarray((await request.json())["x"], np.float32)
        return {"y": self.run(x).tolist()}

    def Predict(self, request: Any) -> Any:  # noqa: N802  The protocol's name.
        """Answer gRPC."""
        from tensorflow_serving.apis import predict_pb2

        response = predict_pb2.PredictResponse()
        y = self.run(self.tf.make_ndarray(request.inputs["x"]))
        response.outputs["y"].CopyFrom(self.tf.make_tensor_proto(y))
        return response


if __name__ == "__main__":
    path, rest_port, grpc_port = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=int(rest_port)),
        grpc_options=gRPCOptions(port=int(grpc_port), grpc_servicer_functions=[SERVICER]),
    )
    serve.run(Model.bind(path))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    ended.wait()
    serve.shutdown()
    ray.shutdown()
