"""Which server speaks gRPC: our own, or grpc.aio where something is asked for that only it has."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.grpc_transport import Server
from serving.manager import ModelManager
from serving.model_server import listeners
from serving.model_server.flags import parse
from serving.model_server.server import Alone
from tests.serving.model_server.conftest import DEADLINE, free_port


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ("", Server),
        ("grpc.max_receive_message_length=1000,grpc.max_concurrent_streams=9", Server),
        ("grpc.max_connection_age_ms=600000", grpc.aio.Server),
    ],
)
def test_both_servers_answer_and_refuse_alike(serving: ModelManager, arguments: str, kind: type) -> None:
    async def check() -> None:
        flags = parse([f"--port={free_port()}", "--host=localhost", f"--grpc_channel_arguments={arguments}"])
        dispatcher = Dispatcher()
        server = await listeners.start_grpc(flags, DataPlane(serving), dispatcher, None, Alone(flags))
        assert isinstance(server, kind)
        request = predict_pb2.PredictRequest(model_spec={"name": "half_plus_two"})
        request.inputs["x"].CopyFrom(tf.make_tensor_proto([2.0], tf.float32))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{flags.port}") as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            answer = await predict(request, timeout=DEADLINE)
            assert list(answer.outputs["y"].float_val) == [3.0]
            request.model_spec.name = ""
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await predict(request, timeout=DEADLINE)
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "ModelSpec has no name specified.",
        )
        await server.stop(1)
        dispatcher.close()

    asyncio.run(check())
