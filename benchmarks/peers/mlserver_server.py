"""MLServer: `python mlserver_server.py MODEL_PATH REST_PORT GRPC_PORT`.

Set up as https://mlserver.readthedocs.io says for a custom runtime: an MLModel with the NumPy codec, no
parallel workers, so that the model runs in the server's own process.
"""

from __future__ import annotations

import asyncio
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse


class SavedModel(MLModel):
    """x to y."""

    async def load(self) -> bool:
        """Load the model."""
        self._module = tf.saved_model.load(self.settings.parameters.uri)
        self._call = self._module.signatures["serving_default"]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the model."""
        x = NumpyCodec.decode_input(payload.inputs[0])
        y = self._call(x=tf.constant(x))["y"].numpy()
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])


async def serve(path: str, rest_port: int, grpc_port: int) -> None:
    """Serve until the process is ended."""
    settings = Settings(
        host="127.0.0.1",
        http_port=rest_port,
        grpc_port=grpc_port,
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
        logging_settings={
            "version": 1,
            "disable_existing_loggers": True,
            "root": {"level": "WARNING", "handlers": []},
        },
    )
    model = ModelSettings(name="model", implementation=SavedModel, parameters=ModelParameters(uri=path))
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
