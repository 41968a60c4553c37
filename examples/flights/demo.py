"""The main job from end to end, on real flights: `make demo`, or `python -m examples.flights.demo`.

Starts an appliance in a scratch folder, trains a linear model and a wide & deep one, promotes each through a
gate, asks both protocols for predictions, rolls back, prints what came of it, and leaves nothing running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from appliance.client import Client, Event, Job
from examples.flights import data

MODEL = "flights"
EXPERIMENT = Path(__file__).with_name("experiment.py")
GATE = ["auc >= 0.69", "auc no worse than production"]
WANTED_AUC = {"linear": 0.69, "wide_and_deep": 0.705}
LARGEST_DIFFERENCE = 1e-6
SHOWN_METRICS = ("auc", "accuracy", "loss")
ROWS = 8

console = Console(highlight=False, soft_wrap=True)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> int:
    """Run the demo; return 0 when everything is as promised."""
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="appliance-demo-") as scratch,
        appliance(Path(scratch)) as (client, grpc_address),
    ):
        timings = run(client, grpc_address)
        report(client, timings | {"everything": time.monotonic() - started})
        succeeded = meets_promises(client)
    console.print("The appliance is stopped and its folder is gone.")
    return 0 if succeeded else 1


@contextlib.contextmanager
def appliance(home: Path) -> Iterator[tuple[Client, str]]:
    """Run `appliance up` in `home` on free ports; yield a client and the address of the gRPC port."""
    rest, grpc = free_ports(2)
    environment = os.environ | {
        "APPLIANCE_HOME": str(home),
        "APPLIANCE_REST_PORT": str(rest),
        "APPLIANCE_GRPC_PORT": str(grpc),
    }
    title(f"Start the appliance in {home}")
    with (home / "appliance.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance.cli", "up"], env=environment, stdout=log, stderr=log
        )
        try:
            client = Client(f"http://127.0.0.1:{rest}", "")
            wait_until_healthy(client, process, home / "appliance.log")
            console.print(f"REST on {client.url}, gRPC on 127.0.0.1:{grpc}")
            with client:
                yield client, f"127.0.0.1:{grpc}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def run(client: Client, grpc_address: str) -> dict[str, float]:
    """Do the main job; return how long its parts took, in seconds."""
    timings: dict[str, float] = {}

    title("Train a linear model, with continuous evaluation")
    linear = train(client, "linear", timings)
    title(f"Promote it through the gate: {', '.join(GATE)}")
    client.set_gate(MODEL, GATE)
    promotion = timed(timings, "promote", client.promote, MODEL, linear.version, reason="the first model")
    print_checks(promotion.gate_report)

    title("Train a wide & deep model; the job promotes it, when the gate lets it")
    deep = train(client, "wide_and_deep", timings, promote="production")
    print_checks(client.history(MODEL)[0].gate_report)

    title(f"Ask for {ROWS} flights by REST, gRPC and the Python client")
    compare_protocols(client, grpc_address, serving=deep.version)

    title("Roll back")
    timed(timings, "rollback, the call", client.rollback, MODEL, reason="to show that it is quick")
    begun = time.monotonic()
    while (version := ask_grpc(grpc_address)[1]) != linear.version:
        if time.monotonic() - begun > 60:
            raise SystemExit(f"Version {version} still answers a minute after the rollback.")
    timings["rollback, until it answers after the call"] = time.monotonic() - begun
    console.print(f"Version {linear.version} answers again.")
    compare_protocols(client, grpc_address, serving=linear.version)
    return timings


def train(client: Client, kind: str, timings: dict[str, float], promote: str | None = None) -> Job:
    """Submit an experiment, watch it, and return its job when it has succeeded."""
    begun = time.monotonic()
    job = client.submit(
        EXPERIMENT,
        model=MODEL,
        params={"kind": kind},
        promote=promote,
        run_config={"save_checkpoints_steps": 250, "tf_random_seed": 1},
    )
    job = client.watch(job, show="none", on_event=print_event)
    if job.state != "succeeded" or job.version is None:
        for line in client.logs(job):
            console.print(line.line, markup=False)
        raise SystemExit(f"The job {job.id} has {job.state}: {job.error}")
    timings[f"train {kind}"] = time.monotonic() - begun
    console.print(f"Registered as version {job.version}.")
    return job


def compare_protocols(client: Client, grpc_address: str, serving: int | None) -> None:
    """Ask for the same flights in three ways, and print the probability that each is late.

    Raises:
        SystemExit: the answers differ, or the wrong version gave them.
    """
    rest = ask_rest(client.url)
    grpc, version = ask_grpc(grpc_address)
    python = np.asarray(
        client.predict(MODEL, instances=json_rows(), signature_name="raw:predict")["probabilities"]
    )[:, 1]
    table = Table("flight", "REST", "gRPC", "client", "was late")
    _, evaluation = data.load()
    for row in range(ROWS):
        flight = " ".join(evaluation.features[name][row].decode() for name in data.CATEGORICAL)
        values = (f"{answers[row]:.6f}" for answers in (rest, grpc, python))
        table.add_row(flight, *values, "yes" if evaluation.labels[row] else "no")
    console.print(table)
    difference = max(np.abs(rest - grpc).max(), np.abs(grpc - python).max())
    console.print(f"Answered by version {version}; largest difference {difference:.1e}.")
    if difference > LARGEST_DIFFERENCE or version != serving:
        raise SystemExit(f"Expected version {serving}, and answers within {LARGEST_DIFFERENCE}.")


def ask_rest(url: str) -> np.ndarray:
    """Return the probability of being late, float64 `[ROWS]`, from `:classify` with plain features."""
    answer = httpx.post(f"{url}/v1/models/{MODEL}:classify", json={"examples": json_rows()}, timeout=60)
    answer.raise_for_status()
    return np.array([dict(result)["1"] for result in answer.json()["results"]])


def ask_grpc(address: str) -> tuple[np.ndarray, int]:
    """Return the same from `Predict` with tensors, and the version that answered."""
    with silent():
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL
    request.model_spec.signature_name = "raw:predict"
    _, evaluation = data.load()
    for name, values in evaluation.features.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values[:ROWS]))
    with grpc.insecure_channel(address) as channel:
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
    probabilities = tf.make_ndarray(answer.outputs["probabilities"]).astype(np.float64)
    return probabilities[:, 1], answer.model_spec.version.value


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Drop what is written to standard error meanwhile: TensorFlow greets from C++ when it is imported."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def json_rows() -> list[dict[str, Any]]:
    """Return the first flights of the evaluation split as JSON objects."""
    _, evaluation = data.load()
    rows: list[dict[str, Any]] = []
    for row in range(ROWS):
        values = {name: column[row].item() for name, column in evaluation.features.items()}
        rows.append({k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()})
    return rows


def report(client: Client, timings: dict[str, float]) -> None:
    """Print the versions with their metrics, who serves, what happened, and how long it took."""
    title("What came of it")
    production = client.labels(MODEL)["production"]
    versions = Table("version", "kind", "step", *SHOWN_METRICS, "serves", title="versions")
    for version in client.versions(MODEL):
        metrics = (f"{version.metrics[name]:.4f}" for name in SHOWN_METRICS)
        serves = "production" if version.version == production else ""
        versions.add_row(str(version.version), version.params["kind"], str(version.step), *metrics, serves)
    history = Table("action", "from", "to", "by", "why", title="history of production")
    for move in reversed(client.history(MODEL)):
        history.add_row(
            move.action, str(move.from_version or ""), str(move.to_version), move.actor, move.reason
        )
    durations = Table("what", "seconds", title="timings")
    for name, seconds in timings.items():
        durations.add_row(name, f"{seconds:.3f}" if seconds < 1 else f"{seconds:.1f}")
    console.print(versions, history, durations)


def meets_promises(client: Client) -> bool:
    """Return whether each kind of model reached its AUC, and say so."""
    met = True
    for version in client.versions(MODEL):
        kind, auc = version.params["kind"], version.metrics["auc"]
        reached = auc >= WANTED_AUC[kind]
        console.print(f"{kind}: auc {auc:.4f}, wanted {WANTED_AUC[kind]}: {'met' if reached else 'MISSED'}")
        met = met and reached
    return met


def print_event(event: Event) -> None:
    """Print how far the training is, or what an evaluation or a gate said."""
    fields = event.fields
    if event.kind == "train":
        speed = f"{fields['steps_per_second']:.0f} steps/s"
        console.print(f"  step {fields['step']:>5}: loss {fields['loss']:.4f}, {speed}")
    elif event.kind == "evaluation":
        metrics = ", ".join(f"{name} {fields['metrics'][name]:.4f}" for name in SHOWN_METRICS)
        console.print(f"  evaluated at step {fields['step']}: {metrics}")


def print_checks(report: Mapping[str, Any] | None) -> None:
    """Print each check of a gate."""
    for check in report["checks"] if report else ():
        console.print(f"  {'passed' if check['passed'] else 'REFUSED'}: {check['detail']}", markup=False)


def timed(timings: dict[str, float], name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    """Call, and note how long it took."""
    begun = time.monotonic()
    result = call(*args, **kwargs)
    timings[name] = time.monotonic() - begun
    return result


def wait_until_healthy(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the appliance answers.

    Raises:
        SystemExit: it ended instead, or a minute and a half have gone by.
    """
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            client.health()
            return
        time.sleep(0.2)
    raise SystemExit(f"The appliance did not start:\n{log.read_text()[-4000:]}")


def free_ports(count: int) -> Sequence[int]:
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def title(text: str) -> None:
    """Print a heading."""
    console.print(f"\n[bold]{text}[/bold]")


if __name__ == "__main__":
    sys.exit(main())
