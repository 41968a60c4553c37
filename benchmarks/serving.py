"""What a prediction costs beyond the model: the model server against bare loops around the same model, and
against the other ways to serve it from Python.

    python -m benchmarks.serving_peers --make DIR       # once: the peers' virtual environments
    python -m benchmarks.serving [--peers DIR] [--only rest] [--rounds 3] [--seconds 1] [--json results.json]

Contenders: `ours` (python -m serving.model_server), `session` (`Session.make_callable` alone, without any
server), `plain` (a bare uvicorn or grpc.aio loop around the same), `prepared` (that loop around our own
prepared callable), and the peers whose environments are there. All run at the same time, each in processes of
its own; the client is another. Every contender is asked in every round, one after another, so that a busy
machine slows all of them; a ratio is the median of the ratios within each round. CPU seconds are those of a
contender and all its child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks import serving_peers, serving_start
from benchmarks.serving_contenders import BARE, COLUMNS, OURS, Contender, free_port
from benchmarks.serving_session import BareSession, bare_session
from benchmarks.table import print_table

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
    """The figures of one contender in one scenario, one a round. `failed` is why there are none."""

    scenario: Scenario
    contender: str
    requests_per_second: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_seconds_per_1000: list[float] = field(default_factory=list)
    failed: str = ""

    def note(self, figures: dict[str, float], cpu_seconds: float) -> None:
        """Add a round's figures."""
        self.requests_per_second.append(figures["requests_per_second"])
        self.p50_ms.append(figures["p50_ms"])
        self.p99_ms.append(figures["p99_ms"])
        self.cpu_seconds_per_1000.append(1000 * cpu_seconds / figures["requests"])


class NotStarted(Exception):
    """A contender gave no answer; the text says which."""


@dataclass(frozen=True)
class Server:
    """A contender that runs, and where it listens."""

    contender: Contender
    process: psutil.Process
    rest: str
    grpc: str

    def cpu_seconds(self) -> float:
        """Return what it and its children have used so far."""
        used = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # It has ended since it was listed.
            used += times.user + times.system
        return used


def main() -> None:
    """Measure, print tables, write the figures when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--only", choices=("rest", "grpc"), help="one protocol")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    peers = serving_peers.installed(options.peers) if options.peers else []
    contenders = [OURS, *BARE, *(peer.contender(options.peers) for peer in peers)]
    scenarios = [scenario for scenario in SCENARIOS if options.only in (None, scenario.protocol)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.serving_model", str(folder / "model" / "1")], check=True
        )
        starts = serving_start.measured(folder / "model", options.rounds, wait_until_predicting)
        servers = []
        for contender in contenders:
            try:
                servers.append(stack.enter_context(started(contender, folder / "model")))
            except NotStarted as error:
                if contender is OURS or contender in BARE:
                    raise
                print(f"Left out: {error}")
        session = stack.enter_context(bare_session(folder / "model" / "1"))
        results = [
            result
            for scenario in scenarios
            for result in measured(scenario, servers, session, folder, options)
        ]
    show(results)
    serving_start.show(starts)
    if options.json:
        figures = {"serving": [asdict(result) for result in results], "start": starts}
        options.json.write_text(json.dumps(figures, indent=1))


def rows_of(scenario: Scenario) -> np.ndarray:
    """Return the numbers that a scenario sends: the same for all contenders."""
    return np.random.default_rng(0).normal(size=(scenario.rows, COLUMNS)).astype(np.float32)


@contextmanager
def started(contender: Contender, base_path: Path) -> Iterator[Server]:
    """Run a contender until the block is left."""
    rest_port, grpc_port = free_port(), free_port()
    process = subprocess.Popen(
        contender.command(base_path, rest_port, grpc_port),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_predicting(contender, process, rest_port)
        addresses = (f"127.0.0.1:{rest_port}", f"127.0.0.1:{grpc_port}")
        yield Server(contender, psutil.Process(process.pid), *addresses)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and then those of its children that it has left behind."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    process.terminate()
    process.wait()
    _, left = psutil.wait_procs(children, timeout=5)
    for child in left:
        child.kill()


def wait_until_predicting(contender: Contender, process: subprocess.Popen[bytes], port: int) -> None:
    """Ask until a prediction is answered."""
    body = contender.rest.body(np.zeros((1, COLUMNS), np.float32))
    url = f"http://127.0.0.1:{port}{contender.rest.target}"
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(headers={"content-type": "application/json"}, timeout=START_SECONDS) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise NotStarted(f"{contender.name} ended at its start: {process.args!r}")
            try:
                if client.post(url, content=body).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # It is not listening yet.
            time.sleep(0.02)
    raise NotStarted(f"{contender.name} did not answer within {START_SECONDS} s: {process.args!r}")


def measured(
    scenario: Scenario, servers: list[Server], session: BareSession, folder: Path, options: Any
) -> list[Result]:
    """Return a result for each contender that speaks the protocol, the rounds interleaved."""
    x = rows_of(scenario)
    results: dict[str, Result] = {}
    for _ in range(options.rounds):
        if scenario.connections == 1:  # One call at a time is all that it does.
            result = results.setdefault(session.name, Result(scenario, session.name))
            before = session.cpu_seconds()
            result.note(session.measure(scenario.rows, options.seconds), session.cpu_seconds() - before)
        for server in servers:
            call = server.contender.call(scenario.protocol)
            if call is None:
                continue
            result = results.setdefault(server.contender.name, Result(scenario, server.contender.name))
            payload = folder / "payload"
            payload.write_bytes(call.body(x))
            address = server.rest if scenario.protocol == "rest" else server.grpc
            arguments = [scenario.protocol, address, call.target, str(scenario.connections)]
            command = [sys.executable, "-m", "benchmarks.serving_load", *arguments]
            before = server.cpu_seconds()
            done = subprocess.run(
                [*command, str(options.seconds), str(payload)],
                capture_output=True,
                text=True,
                env=os.environ,
                check=False,
            )
            if done.returncode:
                result.failed = done.stderr.strip().splitlines()[-1]
                continue
            result.note(json.loads(done.stdout), server.cpu_seconds() - before)
    return list(results.values())


def ratio(results: Sequence[Result], of: Result) -> str:
    """Return how many times the requests per second of `of` ours were: the median over the rounds."""
    our = ours_beside(results, of)
    if of is our:
        return ""
    pairs = zip(our.requests_per_second, of.requests_per_second, strict=True)
    return f"{statistics.median(a / b for a, b in pairs):.2f}x"


def cpu_ratio(results: Sequence[Result], of: Result) -> str:
    """Return how many times our CPU time a request of `of` took: it depends less on what else runs."""
    our = ours_beside(results, of)
    if of is our:
        return ""
    spent = [statistics.median(result.cpu_seconds_per_1000) for result in (of, our)]
    return f"{spent[0] / spent[1]:.2f}x" if spent[1] else ""


def ours_beside(results: Sequence[Result], of: Result) -> Result:
    """Return our result in the scenario of another."""
    return next(r for r in results if r.contender == OURS.name and r.scenario == of.scenario)


def line(results: Sequence[Result], result: Result) -> tuple[str, ...]:
    """Return a result as a line of the table."""
    scenario = result.scenario
    named = (scenario.protocol, str(scenario.connections), f"{scenario.rows:,}", result.contender)
    if result.failed:
        return (*named, "failed", "", "", "", "", "")
    return (
        *named,
        f"{statistics.median(result.requests_per_second):,.0f}",
        f"{statistics.median(result.p50_ms):.2f}",
        f"{statistics.median(result.p99_ms):.2f}",
        f"{statistics.median(result.cpu_seconds_per_1000):.2f}",
        ratio(results, result),
        cpu_ratio(results, result),
    )


def fastest_peers(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return for each scenario its fastest peer, and our ratio to it."""
    known = {OURS.name, BareSession.name, *(contender.name for contender in BARE)}
    lines = []
    for scenario in dict.fromkeys(result.scenario for result in results):
        peers = [r for r in results if r.scenario == scenario and r.contender not in known and not r.failed]
        if peers:
            fastest = max(peers, key=lambda r: statistics.median(r.requests_per_second))
            rate = f"{statistics.median(fastest.requests_per_second):,.0f}"
            ratios = (ratio(results, fastest), cpu_ratio(results, fastest))
            lines.append((str(scenario), fastest.contender, rate, *ratios))
    return lines


def show(results: Sequence[Result]) -> None:
    """Print one line a contender and scenario, the fastest peers, and what failed."""
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the end of the run")
    print_table(
        "Serving",
        (
            "protocol",
            "conns",
            "rows",
            "contender",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "CPU s/1,000",
            "ours/it",
            "CPU it/ours",
        ),
        [line(results, result) for result in results],
    )
    if peers := fastest_peers(results):
        print_table("Fastest peer", ("scenario", "peer", "requests/s", "ours/it", "CPU it/ours"), peers)
    for result in results:
        if result.failed:
            print(f"{result.scenario}, {result.contender}: {result.failed}")


if __name__ == "__main__":
    main()
