"""What the gateway costs in front of a model server, and how a rollback looks from outside.

    python -m benchmarks.gateway [--rounds 5] [--seconds 1] [--moves 20] [--json results.json]

One model server runs as the sidecar of one `appliance gateway`; another `appliance gateway` runs the same
model embedded. Latency: one connection, one row, each way in each round, one after another. Rollback: two
versions that stay loaded, asked over gRPC without a pause by clients of another process while the label
moves to and fro; the time is from the call until the last answer of the version before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.serving_contenders import COLUMNS, OURS, free_port
from benchmarks.table import print_table

START_SECONDS = 180.0
PROTOCOLS = ("rest", "grpc")


@dataclass(frozen=True)
class Entrance:
    """Where requests may go in: by REST and by gRPC, as `host:port`."""

    name: str
    rest: str
    grpc: str


@dataclass
class Moves:
    """What clients saw while a label moved: for each move the milliseconds until the last old answer."""

    milliseconds: list[float] = field(default_factory=list)
    requests: int = 0
    failures: int = 0


def main() -> None:
    """Measure, print two tables, write the figures when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--moves", type=int, default=20, help="of the label, half of them rollbacks")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        saved_model = folder / "saved"
        subprocess.run([sys.executable, "-m", "benchmarks.serving_model", str(saved_model)], check=True)
        direct = stack.enter_context(model_server(folder))
        sidecar = stack.enter_context(gateway(folder / "sidecar", saved_model, direct))
        embedded = stack.enter_context(gateway(folder / "embedded", saved_model, None))
        payloads = write_payloads(folder)
        latency = measured((direct, sidecar, embedded), payloads, options)
        moves = {
            entrance.name: moved(entrance, payloads["grpc"], options) for entrance in (sidecar, embedded)
        }
    show(latency, moves)
    if options.json:
        figures = {"latency_ms": latency, "moves": {name: vars(found) for name, found in moves.items()}}
        options.json.write_text(json.dumps(figures, indent=1))


@contextmanager
def process(arguments: list[str], environment: dict[str, str], ready: Any) -> Iterator[None]:
    """Run a process until the block is left; enter the block once `ready()` is true."""
    command = [sys.executable, "-m", *arguments]
    running = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if running.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Not ready: {command}")
            time.sleep(0.1)
        yield
    finally:
        running.terminate()
        running.wait()


@contextmanager
def model_server(folder: Path) -> Iterator[Entrance]:
    """Run a model server that has no model yet."""
    rest, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    config = folder / "models.config"
    config.write_text("model_config_list {}\n")
    flags = [
        f"--rest_api_port={rest.split(':')[1]}",
        f"--port={grpc.split(':')[1]}",
        f"--model_config_file={config}",
    ]
    with process(
        ["serving.model_server", *flags], {}, lambda: answers(f"http://{rest}/v1/models/model", (404,))
    ):
        yield Entrance("model server alone", rest, grpc)


@contextmanager
def gateway(home: Path, saved_model: Path, sidecar: Entrance | None) -> Iterator[Entrance]:
    """Run a gateway with two versions of the model, version 2 in production and 1 below it."""
    from registry import Registry

    with Registry(f"sqlite:///{home}/appliance.db", home / "models") as registry:
        registry.create_model("model")
        for version in (1, 2):
            registry.publish("model", saved_model)
            registry.promote("model", version, actor="benchmark")
    rest, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    environment = {
        "APPLIANCE_HOME": str(home),
        "APPLIANCE_REST_PORT": rest.split(":")[1],
        "APPLIANCE_GRPC_PORT": grpc.split(":")[1],
    }
    if sidecar is not None:
        environment["APPLIANCE_RUNTIME"] = "sidecar"
        environment["APPLIANCE_SIDECAR_GRPC"] = sidecar.grpc
        environment["APPLIANCE_SIDECAR_REST"] = f"http://{sidecar.rest}"
    name = "gateway, embedded" if sidecar is None else "gateway before it"
    url = f"http://{rest}/v1/models/model/labels/production"
    with process(["appliance.cli", "gateway"], environment, lambda: answers(url, (200,))):
        yield Entrance(name, rest, grpc)


def answers(url: str, statuses: tuple[int, ...]) -> bool:
    """Return whether a GET is answered with one of these."""
    try:
        return httpx.get(url).status_code in statuses
    except httpx.TransportError:
        return False


def measured(
    entrances: tuple[Entrance, ...], payloads: dict[str, Path], options: Any
) -> dict[str, dict[str, list[float]]]:
    """Return the median latency of each round in milliseconds, by protocol and entrance."""
    latency: dict[str, dict[str, list[float]]] = {
        protocol: {entrance.name: [] for entrance in entrances} for protocol in PROTOCOLS
    }
    for _ in range(options.rounds):
        for protocol in PROTOCOLS:
            for entrance in entrances:
                address = entrance.rest if protocol == "rest" else entrance.grpc
                found = loaded(protocol, address, payloads[protocol], options.seconds)
                latency[protocol][entrance.name].append(found["p50_ms"])
    return latency


def write_payloads(folder: Path) -> dict[str, Path]:
    """Write a request of one row to a file, for each protocol."""
    payloads = {}
    for protocol in PROTOCOLS:
        call = OURS.call(protocol)
        assert call is not None  # The model server speaks both.
        payloads[protocol] = folder / f"payload-{protocol}"
        payloads[protocol].write_bytes(call.body(np.zeros((1, COLUMNS), np.float32)))
    return payloads


def loaded(protocol: str, address: str, payload: Path, seconds: float) -> dict[str, float]:
    """Return what the load generator measured on one connection."""
    call = OURS.call(protocol)
    assert call is not None  # The model server speaks both.
    arguments = [protocol, address, call.target, "1", str(seconds), str(payload)]
    command = [sys.executable, "-m", "benchmarks.serving_load", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{protocol} at {address}: {done.stderr[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def moved(entrance: Entrance, payload: Path, options: Any) -> Moves:
    """Move the label to and fro under load."""
    import grpc
    from tensorflow_serving.apis import predict_pb2

    moves, stop = Moves(), threading.Event()
    answered: list[tuple[float, int]] = []

    def ask() -> None:
        body = payload.read_bytes()
        with grpc.insecure_channel(entrance.grpc) as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            while not stop.is_set():
                try:
                    answer = predict_pb2.PredictResponse.FromString(call(body))
                except grpc.RpcError:
                    moves.failures += 1
                else:
                    answered.append((time.perf_counter(), answer.model_spec.version.value))

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    label = f"http://{entrance.rest}/api/v1/models/model/labels/production"
    with httpx.Client(timeout=60.0) as control:
        for move in range(options.moves):
            time.sleep(0.2)
            called, old = time.perf_counter(), 1 if move % 2 else 2
            if move % 2:
                control.put(label, json={"version": 2}).raise_for_status()
            else:
                control.post(f"{label}/rollback", json={}).raise_for_status()
            time.sleep(0.2)
            last_old = max((at for at, version in answered if version == old), default=called)
            moves.milliseconds.append(max(last_old - called, 0.0) * 1e3)
            moves.requests += len(answered)
            answered.clear()
    stop.set()
    for client in clients:
        client.join()
    return moves


def show(latency: dict[str, dict[str, list[float]]], moves: dict[str, Moves]) -> None:
    """Print both tables."""
    rows = []
    for protocol, by_entrance in latency.items():
        alone = next(iter(by_entrance.values()))
        for name, found in by_entrance.items():
            added = statistics.median(ours - theirs for ours, theirs in zip(found, alone, strict=True))
            shown = "" if found is alone else f"{added:+.2f}"
            rows.append((name, protocol, f"{statistics.median(found):.2f}", shown))
    print_table("One row, one connection", ("way in", "protocol", "p50 ms", "added ms"), rows)
    print_table(
        "Moving the label under load, from the call until the last answer of the version before",
        ("way in", "moves", "median ms", "longest ms", "requests", "failed"),
        [
            (
                name,
                str(len(found.milliseconds)),
                f"{statistics.median(found.milliseconds):.0f}",
                f"{max(found.milliseconds):.0f}",
                f"{found.requests:,}",
                str(found.failures),
            )
            for name, found in moves.items()
        ],
    )


if __name__ == "__main__":
    main()
