"""Flags, and the files they name, become the objects that do what they say."""

from __future__ import annotations

import ssl
from pathlib import Path

import numpy as np
import pytest

from serving.batching import BatchingParameters
from serving.errors import InvalidInput
from serving.loading import Loader, LoadOptions
from serving.model_server import settings
from serving.model_server.flags import FlagError, parse
from serving.model_server.server import manager_from
from serving.model_server.start import StartFailed, check
from tests.serving.model_server.certificates import write_ssl_config
from tests.serving.saved_models import copy_version

INTRA = "intra_op_parallelism_threads"
BFLOAT16 = "graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16"
BATCHING = """
max_batch_size { value: 8 }
batch_timeout_micros { value: 500 }
max_enqueued_batches { value: 3 }
num_batch_threads { value: 2 }
thread_pool_name { value: "mine" }
allowed_batch_sizes: [2, 8]
pad_variable_length_inputs: true
enable_large_batch_splitting { value: true }
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_batching_parameters_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "batching", BATCHING)
    found = settings.batching(parse(["--enable_batching", f"--batching_parameters_file={path}"]))
    assert found == BatchingParameters(8, 500, 3, 2, (2, 8), True, True)
    assert settings.batching(parse(["--enable_batching"])) == BatchingParameters()
    assert settings.batching(parse([])) is None


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--tensorflow_session_parallelism=3"], INTRA, 3),
        (["--tensorflow_session_parallelism=3"], "inter_op_parallelism_threads", 3),
        (["--tensorflow_session_parallelism=3", "--tensorflow_intra_op_parallelism=2"], INTRA, 2),
        (["--tensorflow_inter_op_parallelism=4"], "inter_op_parallelism_threads", 4),
        (["--tensorflow_inter_op_parallelism=4"], "intra_op_parallelism_threads", 0),
        (["--per_process_gpu_memory_fraction=0.25"], "gpu_options.per_process_gpu_memory_fraction", 0.25),
        (["--xla_cpu_compilation_enabled"], "graph_options.optimizer_options.global_jit_level", 1),
        (["--xla_gpu_compilation_enabled"], "graph_options.optimizer_options.global_jit_level", 1),
        (["--mixed_precision=bfloat16"], BFLOAT16, 1),
        ([], "graph_options.optimizer_options.global_jit_level", 0),
    ],
)  # fmt: skip
def test_session_flags_reach_the_session_config(flags: list[str], name: str, value: float) -> None:
    found = settings.session_config(parse(flags))
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value


def test_a_session_config_file_is_read_and_flags_win(tmp_path: Path) -> None:
    path = written(tmp_path / "session", "allow_soft_placement: true inter_op_parallelism_threads: 5")
    flags = parse([f"--tensorflow_session_config_file={path}", "--tensorflow_inter_op_parallelism=2"])
    config = settings.session_config(flags)
    assert (config.allow_soft_placement, config.inter_op_parallelism_threads) == (True, 2)
    written(path, "nonsense: 1")
    with pytest.raises(StartFailed, match=r"--tensorflow_session_config_file.*nonsense"):
        manager_from(flags)


def test_models_run_in_a_session_of_that_config(tmp_path: Path, made: Path) -> None:
    path = written(tmp_path / "session", 'device_count { key: "CPU" value: 3 }')
    config = settings.session_config(parse([f"--tensorflow_session_config_file={path}"]))
    servable = Loader(LoadOptions(session_config=config))("half", 1, made / "half_plus_two")
    assert servable.run("serving_default", {"x": np.array([2.0], np.float32)})["y"].tolist() == [3.0]
    assert len(servable._session.list_devices()) == 3
    servable.close()


def test_xla_on_the_cpu_needs_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "--other")
    assert settings.environment(parse(["--xla_cpu_compilation_enabled"])) == {
        "TF_XLA_FLAGS": "--other --tf_xla_cpu_global_jit"
    }
    assert settings.environment(parse([])) == {}


def test_grpc_channel_arguments_come_over_the_servers_own() -> None:
    text = "grpc.max_receive_message_length=1000, grpc.max_connection_age_ms=5,grpc.primary_user_agent=me"
    options = dict(settings.grpc_options(parse([f"--grpc_channel_arguments={text}"])))
    assert options["grpc.max_receive_message_length"] == 1000
    assert options["grpc.max_connection_age_ms"] == 5
    assert options["grpc.primary_user_agent"] == "me"
    assert options["grpc.max_send_message_length"] == -1
    with pytest.raises(InvalidInput, match="got 'oops' in it"):
        settings.grpc_options(parse(["--grpc_channel_arguments=oops"]))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ('prometheus_config { enable: false path: "/metrics" }', ""),
        ("", ""),
    ],
)
def test_a_monitoring_config_says_where_metrics_are(tmp_path: Path, text: str, path: str) -> None:
    file = written(tmp_path / "monitoring", text)
    assert settings.metrics_path(parse([f"--monitoring_config_file={file}"])) == path


def test_an_ssl_config_secures_rest_and_can_ask_for_client_certificates(tmp_path: Path) -> None:
    path = write_ssl_config(tmp_path, client_verify=True)
    context = settings.rest_ssl(parse([f"--rest_api_ssl_config_file={path}"]))
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert settings.grpc_credentials(parse([f"--ssl_config_file={path}"])) is not None
    assert settings.grpc_credentials(parse(["--use_alts_credentials"])) is not None
    assert settings.grpc_credentials(parse([])) is None


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("batching_parameters_file", "max_batch_size: 8", "Expected \"{\""),
        ("batching_parameters_file", "max_batch_size { value: 8 } allowed_batch_sizes: 4", "expected 8"),
        ("batching_parameters_file", "batch_size { value: 8 }", "no field named \"batch_size\""),
        ("monitoring_config_file", "prometheus { }", "no field named"),
        ("monitoring_config_file", "prometheus_config { enable: true path: 'metrics' }", "must begin with /"),
        ("ssl_config_file", "server_key: 'x'", "has no server_cert"),
        ("rest_api_ssl_config_file", "server_key: 'x' server_cert: 'y'", "Cannot use the key and cert"),
        ("rest_api_ssl_config_file", "client_verify: true server_key: 'x' server_cert: 'y'", "no custom_ca"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_fails_the_start(
    tmp_path: Path, flag: str, text: str, message: str
) -> None:
    path = written(tmp_path / "file", text)
    flags = parse(
        [f"--{flag}={path}", "--enable_batching", "--model_base_path=/m", "--port=0", "--grpc_socket_path=s"]
    )
    with pytest.raises(StartFailed, match=f"Cannot use --{flag}: .*{message}"):
        check(flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batching_parameters_file=f"], "without --enable_batching"),
        (["--enable_per_model_batching_parameters"], "without --enable_batching"),
        (["--use_alts_credentials", "--ssl_config_file=f"], "exclude one another"),
        (["--mixed_precision=half"], "takes bfloat16; got 'half'"),
        (["--per_process_gpu_memory_fraction=2"], "from 0 to 1; got 2"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message):
        check(parse([*flags, "--model_base_path=/m"]))


def test_with_per_model_parameters_only_models_that_have_them_are_batched(made: Path, tmp_path: Path) -> None:
    flags = parse(["--enable_batching", "--enable_per_model_batching_parameters"])
    load = Loader(LoadOptions(batching=settings.batching(flags), batching_for=settings.batching_of_model))
    plain = copy_version(made / "half_plus_two", tmp_path / "plain", 1)
    batched = copy_version(made / "half_plus_two", tmp_path / "batched", 1)
    written(batched / "batching_params.pbtxt", "max_batch_size { value: 2 }")
    three = {"x": np.array([2.0, 4.0, 6.0], np.float32)}
    servable = load("plain", 1, plain)
    assert servable.run("serving_default", three)["y"].tolist() == [3.0, 4.0, 5.0]
    servable.close()
    servable = load("batched", 1, batched)
    with pytest.raises(InvalidInput, match="Task size 3 is larger than maximum input batch size 2"):
        servable.run("serving_default", three)
    servable.close()
    written(batched / "batching_params.pbtxt", "max_batch_size { value: 2 } allowed_batch_sizes: 1")
    with pytest.raises(InvalidInput, match="Last entry in allowed_batch_sizes must match"):
        load("batched", 1, batched)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--saved_model_tags=serve,gpu"], "tags", ("serve", "gpu")),
        (["--num_request_iterations_for_warmup=3"], "warmup_iterations", 3),
        ([], "warmup_iterations", 1),
        (["--enable_model_warmup=false"], "enable_warmup", False),
        (["--num_load_threads=2"], "threads", 2),
    ],
)
def test_load_flags_reach_the_loader(flags: list[str], name: str, value: object) -> None:
    assert getattr(manager_from(parse(flags)).loading, name) == value
