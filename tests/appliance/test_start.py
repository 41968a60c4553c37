"""What is refused before any process is started, and in which words."""

import errno
import socket
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from appliance import standalone, startup
from appliance.settings import Settings, settings_environment


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rest_port", 70000, "less than or equal to 65535"),
        ("lease_seconds", float("nan"), "less than or equal to 86400"),
        ("lease_seconds", float("inf"), "less than or equal to 86400"),
        ("poll_wait_seconds", float("inf"), "less than or equal to 86400"),
        ("stop_grace_seconds", float("inf"), "less than or equal to 86400"),
        ("grpc_port", 8501, "APPLIANCE_REST_PORT and APPLIANCE_GRPC_PORT are both 8501. Give each its own"),
        ("host", "0.0.0.0", "Cannot listen on '0.0.0.0' without a token"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [" ", "two words", "line\nend", "\x01secret"])
def test_token_that_no_request_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(token=token)
    (told,) = refused.value.errors()
    assert "APPLIANCE_TOKEN holds spaces, line ends or control characters" in told["msg"]
    assert repr(token) not in told["msg"]


def test_empty_variable_is_none_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose writes `${APPLIANCE_HOME:-}` so; it must not mean the folder the process is in."""
    default = Settings()
    for name in Settings.model_fields:
        monkeypatch.setenv(f"APPLIANCE_{name.upper()}", "")
    assert Settings() == default


def test_another_process_reads_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for given in (
        Settings(home=tmp_path),
        Settings(home=tmp_path, token="secret", webhook_private_addresses=True),
    ):
        with monkeypatch.context() as environment:
            for name, value in settings_environment(given).items():
                environment.setenv(name, value)
            assert Settings() == given


def test_batching_parameters_that_cannot_be_used_are_told_with_their_setting(tmp_path: Path) -> None:
    from appliance.api.server import make_runtime

    (tmp_path / "wrong.txt").write_text("max_batch_size { value: -1 }")
    for name, why in [("absent.txt", "No such file"), ("wrong.txt", "max_batch_size must be at least 1")]:
        settings = Settings(batching_parameters_file=tmp_path / name)
        with pytest.raises(startup.StartError, match=f"{why}.* Set APPLIANCE_BATCHING_PARAMETERS_FILE"):
            make_runtime(settings)


@pytest.mark.parametrize("address", ["tf-serving", "ipv4:10.0.0.1:8500", "http://localhost:8500"])
def test_an_address_of_a_sidecar_that_is_none_is_told_with_its_setting(address: str) -> None:
    from appliance.api.server import make_runtime

    with pytest.raises(startup.StartError, match=f"{address}.* Set APPLIANCE_SIDECAR_GRPC"):
        make_runtime(Settings(runtime="sidecar", sidecar_grpc=address))


def test_free_ports_may_both_be_asked_for() -> None:
    assert Settings(rest_port=0, grpc_port=0).grpc_port == 0


def test_taken_port_and_foreign_address_name_the_setting_that_helps() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"127.0.0.1:{port}: .* Stop what uses the port, or set APPLIANCE_GRPC_PORT"
        with pytest.raises(startup.StartError, match=told):
            startup.bind("127.0.0.1", port, "APPLIANCE_GRPC_PORT")
    # An address of the block kept for documentation: no machine has it.
    with pytest.raises(startup.StartError, match=r"192.0.2.1:0: .* Set APPLIANCE_HOST.$") as refused:
        startup.bind("192.0.2.1", 0, "APPLIANCE_GRPC_PORT")
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\n{"workers": 1}', True),
        (b"\x00\x00\x12\x04", False),
        (b"HTTP/1.1 200 OK\r\n\r\n<p>", False),
    ],
)
def test_whatever_else_answers_at_the_port_is_no_healthy_gateway(answer: bytes, healthy: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        other = threading.Thread(target=answer_once)
        other.start()
        assert standalone.is_healthy(f"http://127.0.0.1:{server.getsockname()[1]}") is healthy
        other.join()
