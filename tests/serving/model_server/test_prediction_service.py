"""Each request of PredictionService is read once and counted once, wherever its work is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from serving import predict_messages
from serving.dataplane import DataPlane
from serving.dispatch import LARGE_REQUEST, Dispatcher
from serving.errors import InvalidInput, ServableNotFound, ServingError
from serving.manager import ModelManager
from serving.metrics import Metrics
from serving.model_server.prediction_service import PredictionService


def request(model: str, rows: int = 1) -> bytes:
    message = predict_pb2.PredictRequest(model_spec={"name": model})
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones(rows, np.float32)))
    return message.SerializeToString()


def answer(handler: Callable[[bytes], Any], data: bytes) -> bytes | ServingError:
    async def call() -> bytes:
        answered = handler(data)
        return await answered if asyncio.iscoroutine(answered) else answered

    try:
        return asyncio.run(call())
    except ServingError as error:
        return error


def test_requests_are_read_once_and_counted_once(
    serving: ModelManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, threads = predict_messages.read, []

    def note(data: bytes) -> predict_messages.Request:
        threads.append(threading.current_thread() is threading.main_thread())
        return read(data)

    monkeypatch.setattr(predict_messages, "read", note)
    metrics, dispatcher = Metrics(), Dispatcher()
    predict = PredictionService(DataPlane(serving), dispatcher, metrics=metrics).handlers()["Predict"]
    try:
        for _ in range(5):  # The first ones in the pool, the others here.
            assert isinstance(answer(predict, request("half_plus_two")), bytes)
        assert threads == [True] * 5
        assert metrics._counts == {("half_plus_two", "OK"): 5}
        threads.clear()
        large = request("half_plus_two", LARGE_REQUEST // 4 + 1)
        assert isinstance(answer(predict, large), bytes)
        assert isinstance(
            answer(predict, large.replace(b"half_plus_two", b"half_plus_ten")), ServableNotFound
        )
        assert isinstance(answer(predict, large[:-1]), InvalidInput)
        assert threads == [False] * 3
        assert isinstance(answer(predict, request("nobody")), ServableNotFound)
        assert isinstance(answer(predict, b"\xff"), InvalidInput)
    finally:
        dispatcher.close()
    assert metrics._counts == {
        ("half_plus_two", "OK"): 6,
        ("half_plus_ten", "NOT_FOUND"): 1,
        ("nobody", "NOT_FOUND"): 1,
        ("", "INVALID_ARGUMENT"): 2,
    }
