"""LitServe: `python litserve_server.py MODEL_PATH REST_PORT GRPC_PORT`; it has no gRPC.

Set up as https://lightning.ai/docs/litserve says: a LitAPI, one worker (LitServe runs it in a process beside
the one that speaks HTTP).
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import litserve
import numpy as np


class ModelAPI(litserve.LitAPI):
    """x to y."""

    def setup(self, device: str) -> None:
        """Load the model in the worker."""
        import tensorflow as tf

        self.module = tf.saved_model.load(os.environ["PEER_MODEL_PATH"])
        self.call = self.module.signatures["serving_default"]
        self.constant = tf.constant

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Return the rows of a request. LitServe takes an annotation here for a parameter of the query."""
        return np.asarray(request["x"], np.float32)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Run the model."""
        return self.call(x=self.constant(x))["y"].numpy()

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        """Return the answer as JSON can carry it."""
        return {"y": output.tolist()}


if __name__ == "__main__":
    os.environ["PEER_MODEL_PATH"] = sys.argv[1]
    server = litserve.LitServer(ModelAPI(), accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[2]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
