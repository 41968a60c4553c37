"""KServe: `python kserve_server.py MODEL_PATH REST_PORT GRPC_PORT`.

Set up as https://kserve.github.io says for a custom predictor: a Model with its own predict, one worker.
REST is asked by its first protocol, gRPC by the second.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class SavedModel(Model):
    """x to y."""

    def __init__(self, path: str) -> None:
        super().__init__("model")
        self._path = path
        self.load()

    def load(self) -> bool:
        """Load the model."""
        self._module = tf.saved_model.load(self._path)
        self._call = self._module.signatures["serving_default"]
        self.ready = True
        return self.ready

    def predict(
        self, payload: dict[str, Any] | InferRequest, headers: Any = None, response_headers: Any = None
    ) -> dict[str, Any] | InferResponse:
        """Run the model."""
        if isinstance(payload, dict):
            return {"predictions": self._run(np.asarray(payload["instances"], np.float32)).tolist()}
        y = self._run(payload.inputs[0].as_numpy())
        output = InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(response_id=payload.id, model_name=self.name, infer_outputs=[output])

    def _run(self, x: np.ndarray) -> np.ndarray:
        return self._call(x=tf.constant(x))["y"].numpy()


if __name__ == "__main__":
    path, rest_port, grpc_port = sys.argv[1:]
    server = ModelServer(
        http_port=int(rest_port),
        grpc_port=int(grpc_port),
        workers=1,
        enable_docs_url=False,
        access_log_format=None,
    )
    server.start([SavedModel(path)])
