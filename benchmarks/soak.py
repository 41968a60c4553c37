"""Many requests over many version swaps: does one fail, and does the server grow?

    python -m benchmarks.soak [--requests 200000] [--swaps 100] [--connections 8]

A model server in a process of its own serves one model, asked on some REST and some gRPC connections
without a pause. At even intervals of the requests the next version appears in its base path, and the oldest
folder goes. Odd versions answer 1, even ones 2, so an answer from a version that should be gone, or is not
there yet, counts as failed. Memory is the server's resident set, taken after each swap; it is flat when the
line through the second half of the swaps rises by less than 0.2 MB a swap. Exit status 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.serving_contenders import free_port
from benchmarks.table import print_table

FLAT_MB_PER_SWAP = 0.2
SWAP_SECONDS = 120.0
FIRST_VERSION = 1


@dataclass
class Soak:
    """What happened. `serving` are the answers that are right now; `memory_mb` and `answered` are taken
    after each swap."""

    requests: int
    swaps: int
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    newest: int = FIRST_VERSION
    serving: frozenset[int] = frozenset({1})
    memory_mb: list[float] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def note(self, answer: float, serving: frozenset[int]) -> None:
        """Count an answer; `serving` are those that were right when it was asked for."""
        self.answers += 1
        if answer not in serving | self.serving:
            self.failures.append(f"answer {answer}, where {sorted(serving | self.serving)} could be")

    @property
    def enough(self) -> bool:
        """Whether all requests are answered and all swaps made."""
        return self.answers >= self.requests and len(self.memory_mb) >= self.swaps

    def growth_mb_per_swap(self) -> float:
        """Return the slope of memory over the second half of the swaps; the first fills caches."""
        settled = self.memory_mb[len(self.memory_mb) // 2 :]
        if len(settled) < 2:
            return 0.0
        return float(np.polyfit(np.arange(len(settled)), settled, 1)[0])

    def verdict(self) -> str:
        """Return "passed", or what was wrong."""
        wrong = []
        if self.failures:
            wrong.append(f"{len(self.failures)} requests failed, the first: {self.failures[0]}")
        if self.growth_mb_per_swap() >= FLAT_MB_PER_SWAP:
            wrong.append(f"memory grows by {self.growth_mb_per_swap():.2f} MB a swap")
        return "; ".join(wrong) or "passed"


def answer_of(version: int) -> int:
    """Return what a version answers."""
    return 1 if version % 2 else 2


def save_model(path: Path, number: int) -> None:
    """Write a SavedModel of two layers that answers this number, whatever it is asked."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        hidden = tf.nn.relu(x @ v1.get_variable("w", [4, 1000]))
        weights = v1.get_variable("zeros", [1000, 1], initializer=v1.zeros_initializer())
        answer = v1.get_variable("answer", initializer=float(number))
        y = tf.identity(tf.squeeze(hidden @ weights, 1) + answer, name="y")
        session.run(v1.global_variables_initializer())
        info, build = v1.saved_model.build_tensor_info, v1.saved_model.build_signature_def
        signature = build({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict")
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session, ["serve"], signature_def_map={"serving_default": signature}
        )
        builder.save()


async def ask_rest(soak: Soak, port: int) -> None:
    """Ask over REST until it is enough."""
    limits = httpx.Limits(max_connections=1)
    url = f"http://127.0.0.1:{port}/v1/models/soak:predict"
    body = b'{"instances": [[1.0, 2.0, 3.0, 4.0]]}'
    async with httpx.AsyncClient(limits=limits, timeout=SWAP_SECONDS) as client:
        while not soak.enough:
            serving = soak.serving
            try:
                response = await client.post(url, content=body)
            except httpx.TransportError as error:
                soak.failures.append(repr(error))
                continue
            if response.status_code == 200:
                soak.note(response.json()["predictions"][0], serving)
            else:
                soak.failures.append(f"{response.status_code} {response.text}")


async def ask_grpc(soak: Soak, port: int) -> None:
    """Ask over gRPC until it is enough."""
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest(model_spec={"name": "soak"})
    x = request.inputs["x"]
    x.dtype = 1
    x.float_val.extend([1.0, 2.0, 3.0, 4.0])
    x.tensor_shape.dim.add(size=1)
    x.tensor_shape.dim.add(size=4)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        while not soak.enough:
            serving = soak.serving
            try:
                response = await stub.Predict(request, timeout=SWAP_SECONDS)
            except grpc.RpcError as error:
                soak.failures.append(str(error))
                continue
            soak.note(response.outputs["y"].float_val[0], serving)


async def swap_versions(soak: Soak, base: Path, saved: Path, port: int, server: Any) -> None:
    """Bring the next version at even intervals, and take the oldest folder away once it has taken over."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SWAP_SECONDS) as client:
        for swap in range(soak.swaps):
            while soak.answers < soak.requests * (swap + 1) / (soak.swaps + 1):
                await asyncio.sleep(0.01)
            number = soak.newest + 1
            staged = base / f"staged-{number}"
            shutil.copytree(saved / str(answer_of(number)), staged)
            soak.serving |= {answer_of(number)}
            staged.rename(base / str(number))
            await _until(client, number, "AVAILABLE")
            soak.newest = number
            await _until(client, number - 1, "END")
            soak.serving = frozenset({answer_of(number)})
            shutil.rmtree(base / str(number - 1))
            soak.memory_mb.append(server.memory_info().rss / 2**20)
            soak.answered.append(soak.answers)


async def _until(client: httpx.AsyncClient, version: int, state: str) -> None:
    deadline = time.monotonic() + SWAP_SECONDS
    while time.monotonic() < deadline:
        if state in (await client.get(f"/v1/models/soak/versions/{version}")).text:
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"Version {version} was not {state} within {SWAP_SECONDS} s.")


async def soaked(soak: Soak, base: Path, saved: Path, ports: tuple[int, int], connections: int) -> None:
    """Ask and swap; `ports` are REST's and gRPC's."""
    server = next(p for p in psutil.Process().children() if str(ports[0]) in " ".join(p.cmdline()))
    asking = [ask_rest(soak, ports[0]) if n % 2 else ask_grpc(soak, ports[1]) for n in range(connections)]
    await asyncio.gather(swap_versions(soak, base, saved, ports[0], server), *asking)


def run(folder: Path, requests: int, swaps: int, connections: int) -> Soak:
    """Soak a model server of our own in `folder`, and return what happened."""
    saved, base = folder / "saved", folder / "soak"
    for number in (1, 2):
        save_model(saved / str(number), number)
    shutil.copytree(saved / str(answer_of(FIRST_VERSION)), base / str(FIRST_VERSION))
    ports = (free_port(), free_port())
    flags = [f"--rest_api_port={ports[0]}", f"--port={ports[1]}", "--file_system_poll_wait_seconds=1"]
    command = [sys.executable, "-m", "serving.model_server", *flags, "--model_name=soak"]
    process = subprocess.Popen([*command, f"--model_base_path={base}"], stderr=subprocess.DEVNULL)
    soak = Soak(requests, swaps)
    try:
        _wait_for_start(process, ports[0])
        asyncio.run(soaked(soak, base, saved, ports, connections))
    finally:
        process.terminate()
        process.wait()
    return soak


def _wait_for_start(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + SWAP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if "AVAILABLE" in httpx.get(f"http://127.0.0.1:{port}/v1/models/soak").text:
                return
        except httpx.TransportError:
            pass  # It is not listening yet.
        time.sleep(0.1)
    raise SystemExit("The model server did not start.")


def show(soak: Soak, seconds: float) -> None:
    """Print memory by the number of swaps, and the verdict."""
    step = max(soak.swaps // 10, 1)
    rows = [
        (str(n), f"{soak.answered[n - 1]:,}", f"{soak.memory_mb[n - 1]:.0f}")
        for n in range(1, len(soak.memory_mb) + 1)
        if n == 1 or n % step == 0
    ]
    print_table("Soak", ("swaps", "requests", "server's memory, MB"), rows)
    print(
        f"{soak.answers:,} requests and {len(soak.memory_mb)} swaps in {seconds:.0f} s; "
        f"{len(soak.failures)} failed; memory grows by {soak.growth_mb_per_swap():.2f} MB a swap. "
        f"Verdict: {soak.verdict()}."
    )


def main() -> int:
    """Soak, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        soak = run(Path(name), options.requests, options.swaps, options.connections)
    show(soak, time.monotonic() - started)
    return int(soak.verdict() != "passed")


if __name__ == "__main__":
    sys.exit(main())
