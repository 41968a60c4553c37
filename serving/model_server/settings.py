"""From flags, and the files they name, to the objects that do what they say.

Everything but `session_config` works without TensorFlow, so that `serving.model_server.start` can refuse
what is wrong before that is imported.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from serving.batching import BatchingParameters
from serving.errors import InvalidInput
from serving.model_server import text_protos
from serving.model_server.flags import Flags

PER_MODEL_BATCHING_FILE = "batching_params.pbtxt"
METRICS_PATH = "/monitoring/prometheus/metrics"
"""Where metrics are when the monitoring config names no path."""
_GRPC_OPTIONS: Mapping[str, Any] = {
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
}


def batching(flags: Flags) -> BatchingParameters | None:
    """Return the batching parameters for all models, or None when requests run alone.

    Raises:
        InvalidInput, OSError: the file cannot be used.
    """
    if not flags.enable_batching:
        return None
    if flags.batching_parameters_file:
        return text_protos.batching_parameters(flags.batching_parameters_file)
    return BatchingParameters()


def batching_of_model(folder: Path) -> BatchingParameters | None:
    """Return the batching parameters in a version's own folder, or None when it has none.

    Raises:
        InvalidInput, OSError: the file cannot be used.
    """
    path = folder / PER_MODEL_BATCHING_FILE
    return text_protos.batching_parameters(path) if path.is_file() else None


def metrics_path(flags: Flags) -> str:
    """Return the path of the Prometheus page over REST; empty: there is none.

    Raises:
        InvalidInput, OSError: the file cannot be used.
    """
    if not flags.monitoring_config_file:
        return ""
    config = text_protos.read(flags.monitoring_config_file, "MonitoringConfig").prometheus_config
    if not config.enable:
        return ""
    path: str = config.path or METRICS_PATH
    if not path.startswith("/"):
        raise InvalidInput(f"The path in '{flags.monitoring_config_file}' must begin with /; got '{path}'.")
    return path


def grpc_options(flags: Flags, *, shared_port: bool = False) -> list[tuple[str, Any]]:
    """Return the gRPC server's channel arguments: its own, and over them those of the flag.

    `shared_port`: other processes of this server listen on the same port.

    Raises:
        InvalidInput: one that is not key=value.
    """
    # Unless it is meant, a second server on the same port has to get an error, not every other connection.
    options = {**_GRPC_OPTIONS, "grpc.so_reuseport": int(shared_port)}
    for argument in filter(None, (part.strip() for part in flags.grpc_channel_arguments.split(","))):
        name, equals, value = argument.partition("=")
        if not name or not equals:
            raise InvalidInput(f"--grpc_channel_arguments takes key=value,key=value; got '{argument}' in it.")
        options[name] = int(value) if value.lstrip("-").isdigit() else value
    return list(options.items())


def grpc_credentials(flags: Flags) -> grpc.ServerCredentials | None:
    """Return what secures the TCP port of gRPC; None: nothing.

    Raises:
        InvalidInput, OSError: the file cannot be used.
    """
    if flags.use_alts_credentials:
        return grpc.alts_server_credentials()
    if not flags.ssl_config_file:
        return None
    config = _ssl_config(flags.ssl_config_file)
    pair = (config.server_key.encode(), config.server_cert.encode())
    return grpc.ssl_server_credentials([pair], config.custom_ca.encode() or None, config.client_verify)


def rest_ssl(flags: Flags) -> ssl.SSLContext | None:
    """Return what secures REST; None: nothing.

    Raises:
        InvalidInput, OSError: the file cannot be used.
    """
    if not flags.rest_api_ssl_config_file:
        return None
    return _tls(flags.rest_api_ssl_config_file)


def grpc_ssl(flags: Flags) -> ssl.SSLContext | None:
    """Return what secures the TCP port of gRPC where `serving.grpc_transport` serves it; None: nothing.

    Raises:
        InvalidInput, OSError: the file cannot be used.
    """
    if not flags.ssl_config_file:
        return None
    context = _tls(flags.ssl_config_file)
    context.set_alpn_protocols(["h2"])
    return context


def _tls(path: str) -> ssl.SSLContext:
    config = _ssl_config(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Python's ssl reads key and certificate from a file only; it exists for this moment, for us alone.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
            pair.write(f"{config.server_key}\n{config.server_cert}\n")
            pair.flush()
            context.load_cert_chain(pair.name)
        if config.custom_ca:
            context.load_verify_locations(cadata=config.custom_ca)
    except ssl.SSLError as error:
        raise InvalidInput(f"Cannot use the key and certificates in '{path}': {error}") from error
    if config.client_verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _ssl_config(path: str) -> Any:
    config = text_protos.read(path, "SSLConfig")
    for name in ("server_key", "server_cert", *(["custom_ca"] if config.client_verify else [])):
        if not getattr(config, name):
            raise InvalidInput(f"'{path}' has no {name}: the PEM text itself, not the name of a file.")
    return config


def environment(flags: Flags) -> dict[str, str]:
    """Return the environment variables that TensorFlow must find when it is imported."""
    if not flags.xla_cpu_compilation_enabled:
        return {}
    return {"TF_XLA_FLAGS": f"{os.environ.get('TF_XLA_FLAGS', '')} --tf_xla_cpu_global_jit".strip()}


def session_config(flags: Flags) -> Any:
    """Return the tf.compat.v1.ConfigProto of every session.

    Raises:
        InvalidInput, OSError: the file cannot be used, or a mixed precision that there is not.
    """
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

    config = config_pb2.ConfigProto()
    if flags.tensorflow_session_config_file:
        text_protos.read_into(flags.tensorflow_session_config_file, config)
    for name in ("intra_op", "inter_op"):
        threads = getattr(flags, f"tensorflow_{name}_parallelism") or flags.tensorflow_session_parallelism
        if threads:
            setattr(config, f"{name}_parallelism_threads", threads)
    if flags.per_process_gpu_memory_fraction:
        config.gpu_options.per_process_gpu_memory_fraction = flags.per_process_gpu_memory_fraction
    options = config.graph_options
    if flags.xla_cpu_compilation_enabled or flags.xla_gpu_compilation_enabled:
        options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.ON_1
    if flags.mixed_precision == "bfloat16":
        options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = rewriter_config_pb2.RewriterConfig.ON
    return config
