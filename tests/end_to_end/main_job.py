"""The main job, as a user does it: train, register, gate, promote, predict, replace, roll back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from appliance.client import Client, GateRefused, InvalidRequest, Job, NotFound
from tests.end_to_end.processes import wait_until

EXPERIMENT = Path(__file__).parent / "line" / "experiment.py"
MODEL = "line"
X = [[-2.0], [0.25], [3.0]]


class MainJob:
    """One user at one appliance."""

    def __init__(self, client: Client, grpc_address: str, token: str = "") -> None:
        self.client, self._grpc_address, self._token = client, grpc_address, token

    def run(self) -> None:
        """Go all the way with two versions, of slopes 2 and 3."""
        first = self.train(slope=2.0)
        assert (first.version, first.step) == (1, 40)
        assert self.client.labels(MODEL) == {}
        with pytest.raises(NotFound):
            self.client.predict(MODEL, instances=X)
        self.client.set_gate(MODEL, ["loss <= 0.01"])
        promoted = self.client.promote(MODEL, 1, reason="the first")
        assert promoted.serving is True
        self.assert_served(slope=2.0)

        second = self.train(slope=3.0, promote="production")
        assert (second.version, second.result["promoted_to"]) == (2, "production")
        wait_until(lambda: self.slope() == pytest.approx(3.0, abs=1e-4), "version 2 is served")
        self.assert_served(slope=3.0)

        back = self.client.rollback(MODEL, reason="as an exercise")
        assert (back.from_version, back.to_version, back.serving) == (2, 1, True)
        self.assert_served(slope=2.0)
        still_loaded = self.client.predict(MODEL, instances=X, version=2)
        np.testing.assert_allclose(still_loaded, 3.0 * np.array(X), atol=1e-3)
        moves = [(move.action, move.from_version, move.to_version) for move in self.client.history(MODEL)]
        assert moves == [("rollback", 2, 1), ("promote", 1, 2), ("promote", None, 1)]
        versions = self.client.versions(MODEL)
        assert [version.job for version in versions] == [second.id, first.id]
        assert [version.params["slope"] for version in versions] == [3.0, 2.0]
        assert all(version.metrics["loss"] < 0.01 for version in versions)

    def train(self, *, promote: str | None = None, **params: Any) -> Job:
        """Submit the experiment, watch it, and return the job, which has succeeded."""
        kinds = set()
        job = self.client.submit(
            EXPERIMENT,
            model=MODEL,
            promote=promote,
            params={"steps": 40, **params},
            run_config={"save_checkpoints_steps": 20, "log_step_count_steps": 10},
        )
        ended = self.client.watch(job, on_event=lambda event: kinds.add(event.kind))
        log = "\n".join(line.line for line in self.client.logs(job))
        assert ended.state == "succeeded", f"{ended.error}\n{log}"
        assert kinds >= {"train", "checkpoint", "evaluation", "export"}
        return ended

    def slope(self) -> float:
        """Return what the served model makes of one."""
        return float(self.client.predict(MODEL, instances=[[1.0]])[0][0])

    def assert_served(self, slope: float) -> None:
        """Ask by the client, by REST in rows and columns, by label, and by gRPC; all answers agree."""
        by_client = self.client.predict(MODEL, instances=X)
        np.testing.assert_allclose(by_client, slope * np.array(X), atol=1e-3)
        rows = self.rest("", {"instances": [{"x": row} for row in X]})["predictions"]
        columns = self.rest("/labels/production", {"inputs": {"x": X}})["outputs"]
        for answer in (rows, columns, self.by_grpc()):
            np.testing.assert_allclose(answer, by_client, atol=1e-6)

    def rest(self, where: str, body: Any) -> Any:
        """Ask by REST, as any client of TensorFlow Serving does."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        url = f"{self.client.url}/v1/models/{MODEL}{where}:predict"
        answer = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def by_grpc(self) -> np.ndarray:
        """Ask by gRPC, as any client of TensorFlow Serving does."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = MODEL
        tensor = request.inputs["x"]
        tensor.dtype = 1  # float32
        for size in (len(X), 1):
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.extend(value for row in X for value in row)
        metadata = [("authorization", f"Bearer {self._token}")] if self._token else []
        with grpc.insecure_channel(self._grpc_address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            answer = stub.Predict(request, timeout=60, metadata=metadata)
        return np.array(answer.outputs["y"].float_val).reshape(len(X), 1)

    def assert_mistakes_are_told(self) -> None:
        """A gate refuses a version that was trained too little; a wrong feature is named."""
        weak = self.train(slope=5.0, steps=1, promote="production")
        assert weak.version is not None
        assert "loss" in weak.result["promotion_refused"]
        with pytest.raises(GateRefused) as refused:
            self.client.promote(MODEL, weak.version)
        assert str(refused.value).startswith(
            f"Cannot promote version {weak.version} of model 'line' to 'production': "
        )
        with pytest.raises(InvalidRequest) as wrong:
            self.client.predict(MODEL, instances=[{"z": [1.0]}])
        assert "JSON object: does not have named input: z" in str(wrong.value)
