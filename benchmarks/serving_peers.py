"""The other ways to serve a SavedModel from Python, each in a virtual environment of its own.

    python -m benchmarks.serving_peers --make DIR [--only NAME]
    python -m benchmarks.serving --peers DIR

Each is set up as its documentation shows for a model of one's own (`benchmarks/peers/`), with one process or
replica for the model, and loads it with `tf.saved_model.load`. Their access logs are off. A peer that cannot
be installed is named with pip's reason, and left out of the measurement.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving_contenders import (
    PREDICT_METHOD,
    Call,
    Contender,
    inference_body,
    inference_proto,
    named_body,
    predict_proto,
    rows_body,
)

TENSORFLOW = "tensorflow-cpu==2.21.0"
SERVERS = Path(__file__).parent / "peers"
_INFERENCE_METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Peer:
    """A peer: what to install beside TensorFlow, and how it is asked."""

    name: str
    requirements: tuple[str, ...]
    rest: Call
    grpc: Call | None = None

    def contender(self, environments: Path) -> Contender:
        """Return it as a contender that runs in its own environment below `environments`."""
        return Contender(self.name, self._command(environments), self.rest, self.grpc)

    def _command(self, environments: Path) -> Callable[[Path, int, int], list[str]]:
        def command(base_path: Path, rest_port: int, grpc_port: int) -> list[str]:
            server = SERVERS / f"{self.name}_server.py"
            return [
                str(python_of(environments, self)),
                str(server),
                str(base_path / "1"),
                str(rest_port),
                str(grpc_port),
            ]

        return command


PEERS = (
    Peer(
        "mlserver",
        ("mlserver==1.7.1",),
        Call("/v2/models/model/infer", inference_body),
        Call(_INFERENCE_METHOD, inference_proto),
    ),
    Peer("litserve", ("litserve==0.2.19",), Call("/predict", named_body)),
    Peer("bentoml", ("bentoml==1.4.40",), Call("/predict", named_body)),
    Peer(
        "ray",
        ("ray[serve]==2.60.0", "tensorflow-serving-api==2.21.0"),
        Call("/", named_body),
        Call(PREDICT_METHOD, predict_proto),
    ),
    Peer(
        "kserve",
        ("kserve==0.21.0",),
        Call("/v1/models/model:predict", rows_body),
        Call(_INFERENCE_METHOD, inference_proto),
    ),
)


def python_of(environments: Path, peer: Peer) -> Path:
    """Return the interpreter of a peer's environment."""
    return environments.absolute() / peer.name / "bin" / "python"


def installed(environments: Path) -> list[Peer]:
    """Return the peers whose environments are whole."""
    return [peer for peer in PEERS if (environments / peer.name / "complete").exists()]


def make(environments: Path, peers: Sequence[Peer]) -> list[str]:
    """Make the environments that are not there yet; return a line for each peer that pip refused."""
    refused = []
    for peer in peers:
        folder = environments / peer.name
        if (folder / "complete").exists():
            continue
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python_of(environments, peer)), "-m", "pip", "install", "--quiet"]
        done = subprocess.run(
            [*pip, TENSORFLOW, *peer.requirements], capture_output=True, text=True, check=False
        )
        if done.returncode:
            refused.append(f"{peer.name} ({', '.join(peer.requirements)}): {_reason(done.stderr)}")
        else:
            (folder / "complete").touch()
            print(f"{peer.name}: ready")
    return refused


def _reason(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    return " ".join(errors or stderr.splitlines()[-1:])


def main() -> None:
    """Make the environments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make", type=Path, required=True, metavar="DIR", help="make the environments here")
    parser.add_argument("--only", choices=[peer.name for peer in PEERS], help="of this peer alone")
    options = parser.parse_args()
    chosen = [peer for peer in PEERS if options.only in (None, peer.name)]
    for line in make(options.make, chosen):
        print(f"Cannot be installed: {line}")


if __name__ == "__main__":
    main()
