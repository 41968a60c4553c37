"""What a prediction costs beyond the model: the model server against bare loops around the same model.

    python -m benchmarks.serving [--rounds 3] [--seconds 1] [--json results.json]

Contenders, one process each: `ours` (python -m serving.model_server), `plain` (a bare uvicorn or grpc.aio
loop around `Session.make_callable`) and `prepared` (the same loop around our own prepared callable). The
client is another process. Every contender runs in every round, one after another, so that a busy machine
slows all of them; a ratio is the median of the ratios within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.table import print_table

COLUMNS = 20
HIDDEN = (64, 32)
START_SECONDS = 180.0


@dataclass(frozen=True)
class Scenario:
    """One kind of load: `rest` or `grpc`, so many connections, so many rows a request."""

    protocol: str
    connections: int
    rows: int

    def __str__(self) -> str:
        return f"{self.protocol}, {self.connections} connections, {self.rows:,} rows"


SCENARIOS = tuple(
    Scenario(protocol, connections, rows)
    for protocol in ("rest", "grpc")
    for rows in (1, 128, 4096)
    for connections in (1, 16)
)


@dataclass
class Result:
    """The figures of one contender in one scenario, one a round."""

    scenario: Scenario
    contender: str
    requests_per_second: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def note(self, figures: dict[str, float]) -> None:
        """Add a round's figures."""
        for name, figure in figures.items():
            getattr(self, name).append(figure)


@dataclass(frozen=True)
class Server:
    """Where a contender listens."""

    name: str
    rest: str
    grpc: str


def main() -> None:
    """Measure, print a table, write the figures when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.serving_model", str(folder / "model" / "1")], check=True
        )
        payloads = write_payloads(folder)
        servers = [stack.enter_context(started(contender, folder / "model")) for contender in COMMANDS]
        results = [
            result
            for scenario in SCENARIOS
            for result in measured(scenario, servers, payloads[scenario.protocol, scenario.rows], options)
        ]
    show(results)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


def write_payloads(folder: Path) -> dict[tuple[str, int], Path]:
    """Write the request bodies to files: each holds the same numbers for both protocols."""
    from tensorflow_serving.apis import predict_pb2

    from serving import wire

    payloads = {}
    for rows in sorted({scenario.rows for scenario in SCENARIOS}):
        x = np.random.default_rng(0).normal(size=(rows, COLUMNS)).astype(np.float32)
        request = predict_pb2.PredictRequest(model_spec={"name": "model"})
        wire.fill_proto(x, request.inputs["x"], as_content=True)
        bodies = {
            "rest": orjson.dumps({"instances": x}, option=orjson.OPT_SERIALIZE_NUMPY),
            "grpc": request.SerializeToString(),
        }
        for protocol, body in bodies.items():
            payloads[protocol, rows] = folder / f"{protocol}-{rows}"
            payloads[protocol, rows].write_bytes(body)
    return payloads


def ours(base_path: Path, rest_port: int, grpc_port: int) -> list[str]:
    """Return the model server's command."""
    flags = [f"--rest_api_port={rest_port}", f"--port={grpc_port}", "--model_name=model"]
    return [sys.executable, "-m", "serving.model_server", *flags, f"--model_base_path={base_path}"]


def bare(kind: str) -> Any:
    """Return a function that gives the command of a bare loop."""

    def command(base_path: Path, rest_port: int, grpc_port: int) -> list[str]:
        arguments = [str(base_path / "1"), str(rest_port), str(grpc_port), kind]
        return [sys.executable, "-m", "benchmarks.serving_bare", *arguments]

    return command


COMMANDS: dict[str, Any] = {"ours": ours, "plain": bare("plain"), "prepared": bare("prepared")}


@contextmanager
def started(contender: str, base_path: Path) -> Iterator[Server]:
    """Run a contender until the block is left."""
    rest_port, grpc_port = free_port(), free_port()
    process = subprocess.Popen(
        COMMANDS[contender](base_path, rest_port, grpc_port), stderr=subprocess.DEVNULL
    )
    try:
        wait_until_predicting(process, rest_port)
        yield Server(contender, f"127.0.0.1:{rest_port}", f"127.0.0.1:{grpc_port}")
    finally:
        process.terminate()
        process.wait()


def wait_until_predicting(process: subprocess.Popen[bytes], port: int) -> None:
    """Ask until a prediction is answered."""
    import httpx

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"A server ended at start: {process.args!r}")
        try:
            url = f"http://127.0.0.1:{port}/v1/models/model:predict"
            if httpx.post(url, json={"instances": [[0.0] * COLUMNS]}).status_code == 200:
                return
        except httpx.TransportError:
            pass  # It is not listening yet.
        time.sleep(0.1)
    raise SystemExit(f"A server did not answer within {START_SECONDS} s: {process.args!r}")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def measured(scenario: Scenario, servers: list[Server], payload: Path, options: Any) -> list[Result]:
    """Return a result for each contender, the rounds interleaved."""
    results = {server.name: Result(scenario, server.name) for server in servers}
    for _ in range(options.rounds):
        for server in servers:
            address = server.rest if scenario.protocol == "rest" else server.grpc
            arguments = [
                scenario.protocol,
                address,
                str(scenario.connections),
                str(options.seconds),
                str(payload),
            ]
            command = [sys.executable, "-m", "benchmarks.serving_load", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            if done.returncode:
                raise SystemExit(f"{scenario}, {server.name}: {done.stderr[-500:]}")
            results[server.name].note(json.loads(done.stdout))
    return list(results.values())


def ratio(results: list[Result], against: Result) -> float:
    """Return how many times the requests per second of `against` ours were: the median over the rounds."""
    our = next(r for r in results if r.contender == "ours" and r.scenario == against.scenario)
    pairs = zip(our.requests_per_second, against.requests_per_second, strict=True)
    return statistics.median(a / b for a, b in pairs)


def show(results: list[Result]) -> None:
    """Print one line a contender and scenario."""
    rows = [
        (
            result.scenario.protocol,
            str(result.scenario.connections),
            f"{result.scenario.rows:,}",
            result.contender,
            f"{statistics.median(result.requests_per_second):,.0f}",
            f"{statistics.median(result.p50_ms):.2f}",
            f"{statistics.median(result.p99_ms):.2f}",
            "" if result.contender == "ours" else f"{ratio(results, result):.2f}x",
        )
        for result in results
    ]
    print_table(
        "Serving",
        ("protocol", "conns", "rows", "contender", "requests/s", "p50 ms", "p99 ms", "ours/it"),
        rows,
    )


if __name__ == "__main__":
    main()
