"""The client by itself, where no server answers."""

from __future__ import annotations

import dataclasses
import json
import pickle
import socket

import pytest

from appliance.client import Client, ConnectionFailed, GateRefused, InvalidRequest, Version
from appliance.client.results import parse


@pytest.mark.parametrize("url", ["host", "http://", "http://a:port", "http://[", "http://a b", "ftp://a"])
def test_what_is_no_address_of_a_server_is_named(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"Cannot use .* as the server's address: give it as http://"):
        Client(url)


def test_nobody_at_the_address_is_told_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(ConnectionFailed) as raised:
            client.models()
    assert str(raised.value).startswith(f"Cannot reach the appliance at http://127.0.0.1:{port}:")
    assert "Start it with `appliance up`, or set APPLIANCE_URL." in str(raised.value)
    with pytest.raises(InvalidRequest, match="Cannot use 'localhost:8501'"):
        Client("localhost:8501")


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(GateRefused("too low", "gate_refused", 409)))
    assert (str(error), error.code, error.status, type(error)) == (
        "too low",
        "gate_refused",
        409,
        GateRefused,
    )


def test_record_of_a_newer_server_can_be_read() -> None:
    data = {
        "model": "m",
        "version": 1,
        "state": "ready",
        "colour": "blue",
        "ready_at": "2026-01-02T03:04:05+00:00",
    }
    version = parse(Version, data)
    assert version.ready_at is not None
    assert version.ready_at.year == 2026
    assert json.loads(json.dumps(dataclasses.asdict(version), default=str))["state"] == "ready"
