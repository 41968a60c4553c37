"""BentoML: `python bentoml_server.py MODEL_PATH REST_PORT GRPC_PORT`; its services have no gRPC.

Set up as https://docs.bentoml.com says: a service class with a NumPy input, served by `bentoml serve` with
one worker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bentoml
import numpy as np


@bentoml.service(name="model", workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Model:
    """x to y."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.module = tf.saved_model.load(os.environ["PEER_MODEL_PATH"])
        self.call = self.module.signatures["serving_default"]
        self.constant = tf.constant

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Run the model."""
        return self.call(x=self.constant(x.astype(np.float32)))["y"].numpy()


if __name__ == "__main__":
    os.environ["PEER_MODEL_PATH"] = sys.argv[1]
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    here = Path(__file__).parent
    bento = [sys.executable, "-m", "bentoml", "serve", "bentoml_server:Model", "--working-dir", str(here)]
    os.execv(sys.executable, [*bento, "--host", "127.0.0.1", "--port", sys.argv[2]])
