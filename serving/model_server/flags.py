"""The flags of tensorflow_model_server: their names, types, defaults and meaning, and how a command line is
read.

`--flag=value` and `--flag` alone (true) are read as tensorflow_model_server reads them; `--flag value` is
taken too. An unknown flag is refused with the nearest known one. Flags that exist there but do nothing here
are taken with a warning.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class FlagError(Exception):
    """The command line cannot be used; the text says why and what would be right."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag; `works` is false for those that are taken only so that existing command lines start."""

    name: str
    default: Any
    help: str
    works: bool = True


_NO_EFFECT = ""

FLAGS: tuple[Flag, ...] = (
    Flag(
        "host",
        "127.0.0.1",
        "Address to listen on, for both ports. 0.0.0.0: all (an addition to TensorFlow Serving)",
    ),
    Flag("port", 8500, "TCP port for gRPC. 0: none"),
    Flag("grpc_socket_path", "", "Listen for gRPC on this UNIX socket, besides the TCP port. Empty: none"),
    Flag("rest_api_port", 0, "TCP port for REST. 0: none"),
    Flag("rest_api_num_threads", 0, "Threads for requests too slow or large for the event loop. 0: 4 x CPUs"),
    Flag("model_name", "default", "Name of the model; not used with --model_config_file"),
    Flag("model_base_path", "", "Folder of the model's version folders; not used with --model_config_file"),
    Flag("model_config_file", "", "Text file with a ModelServerConfig: the models to serve"),
    Flag(
        "model_config_file_poll_wait_seconds",
        0,
        "Seconds between readings of --model_config_file. 0: it is read at start only",
    ),
    Flag(
        "file_system_poll_wait_seconds",
        1,
        "Seconds between looks for new versions. 0: only at start and at reloads; negative: never",
    ),
    Flag(
        "allow_version_labels_for_unavailable_models",
        False,
        "Let a label that is not in use yet name a version that is not available yet",
    ),
    Flag("max_num_load_retries", 5, "Times to try again after a load has failed"),
    Flag("load_retry_interval_micros", 60_000_000, "Microseconds between two tries"),
    Flag(
        "enable_model_warmup", True, "Run the model's recorded warm-up requests before it becomes available"
    ),
    Flag(
        "enable_signature_method_name_check",
        False,
        "Refuse signatures whose method_name does not fit the method that is called",
    ),
    Flag(
        "enable_serialization_as_tensor_content",
        False,
        "Answer gRPC Predict with tensor_content, not typed fields",
    ),
    Flag("saved_model_tags", "serve", "Comma-separated tags of the graph to load"),
    Flag(
        "rest_api_timeout_in_ms",
        30_000,
        "Milliseconds a REST request may take; then the answer is 504. 0: any",
    ),
    Flag("rest_api_enable_cors_support", False, "Let pages from other origins call REST"),
    Flag(
        "rest_api_ssl_config_file",
        "",
        "Text file with an SSLConfig for REST: HTTPS instead of HTTP (an addition to TensorFlow Serving)",
    ),
    Flag("ssl_config_file", "", "Text file with an SSLConfig for the TCP port of gRPC"),
    Flag("use_alts_credentials", False, "Take gRPC calls with ALTS only (inside Google Cloud)"),
    Flag(
        "grpc_channel_arguments",
        "",
        "Comma-separated gRPC channel arguments, as in grpc.max_receive_message_length=1000000",
    ),
    Flag(
        "grpc_max_threads", 0, "Threads for gRPC requests too slow or large for the event loop. 0: 4 x CPUs"
    ),
    Flag("enable_batching", False, "Run requests of the same signature together"),
    Flag("batching_parameters_file", "", "Text file with BatchingParameters. Empty: their defaults"),
    Flag(
        "enable_per_model_batching_parameters",
        False,
        "Take a version's parameters from its own batching_params.pbtxt; versions without are not batched",
    ),
    Flag("num_load_threads", 0, "How many versions load at once. 0: one of each model"),
    Flag("num_request_iterations_for_warmup", 0, "Times each recorded warm-up request is run. 0: once"),
    Flag(
        "tensorflow_session_parallelism",
        0,
        "Threads for running graphs, within and between ops. 0: automatic",
    ),
    Flag("tensorflow_intra_op_parallelism", 0, "Threads within an op. 0: automatic"),
    Flag("tensorflow_inter_op_parallelism", 0, "Threads between ops. 0: automatic"),
    Flag(
        "tensorflow_session_config_file",
        "",
        "Text file with a tensorflow.ConfigProto for every session; the flags beside it win",
    ),
    Flag(
        "per_process_gpu_memory_fraction",
        0.0,
        "Part of each GPU's memory to take. 0: as needed by TensorFlow",
    ),
    Flag("xla_cpu_compilation_enabled", False, "Compile graphs with XLA on the CPU"),
    Flag("xla_gpu_compilation_enabled", False, "Compile graphs with XLA on GPUs"),
    Flag("mixed_precision", "", "bfloat16: let TensorFlow compute in it where it thinks that is safe"),
    Flag("monitoring_config_file", "", "Text file with a MonitoringConfig: Prometheus metrics over REST"),
    Flag(
        "workers",
        1,
        "Processes behind the same ports, each with all models (an addition to TensorFlow Serving)",
    ),
    Flag("version", False, "Print the version and exit"),
    Flag("help", False, "Print this text and exit"),
    # Known to tensorflow_model_server; without effect here.
    Flag("num_unload_threads", 0, _NO_EFFECT, works=False),
    Flag("flush_filesystem_caches", True, _NO_EFFECT, works=False),
    Flag("platform_config_file", "", _NO_EFFECT, works=False),
    Flag("remove_unused_fields_from_bundle_metagraph", True, _NO_EFFECT, works=False),
    Flag("prefer_tflite_model", False, _NO_EFFECT, works=False),
    Flag("num_tflite_pools", 0, _NO_EFFECT, works=False),
    Flag("num_tflite_interpreters_per_pool", 1, _NO_EFFECT, works=False),
    Flag("enable_profiler", True, _NO_EFFECT, works=False),
    Flag("thread_pool_factory_config_file", "", _NO_EFFECT, works=False),
    Flag("skip_initialize_tpu", False, _NO_EFFECT, works=False),
    Flag("enable_grpc_healthcheck_service", False, _NO_EFFECT, works=False),
)
_BY_NAME = {flag.name: flag for flag in FLAGS}
ALWAYS_SO = {"enable_grpc_healthcheck_service", "flush_filesystem_caches", "enable_profiler"}
"""What holds here whatever is asked, and needs no warning: health checks are always on, there is never a
profiler."""


@dataclass(frozen=True, slots=True)
class Flags:
    """A command line that was read: every flag's value, and what to warn of."""

    values: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError as error:
            raise AttributeError(name) from error


def parse(arguments: Sequence[str]) -> Flags:
    """Read a command line (without the program's name).

    Raises:
        FlagError: an unknown flag, a bad value, or something that is no flag.
    """
    values = {flag.name: flag.default for flag in FLAGS}
    warnings: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value, text = _name_of(argument).partition("=")
        flag = _known(name)
        if not has_value:
            text = _value_after(flag, rest)
        values[name] = _convert(flag, text)
        if not flag.works and name not in ALWAYS_SO and values[name] != flag.default:
            warnings.append(f"--{name} has no effect in this server")
    return Flags(values, warnings)


def usage() -> str:
    """Return the text of --help."""
    lines = ["usage: python -m serving.model_server [flags]", "Flags:"]
    for flag in FLAGS:
        if flag.works:
            kind = type(flag.default).__name__.replace("str", "string")
            shown = str(flag.default).lower() if isinstance(flag.default, bool) else repr(flag.default)
            lines.append(f"  --{flag.name}={shown}\t{kind}\t{flag.help}.")
    ignored = ", ".join(f"--{flag.name}" for flag in FLAGS if not flag.works)
    return "\n".join(lines) + f"\nTaken, but without effect here: {ignored}.\n"


def _name_of(argument: str) -> str:
    if not argument.startswith("-") or argument in ("-", "--"):
        raise FlagError(f"'{argument}' is no flag. Write --flag=value; --help lists the flags.")
    return argument.removeprefix("--") if argument.startswith("--") else argument[1:]


def _known(name: str) -> Flag:
    flag = _BY_NAME.get(name)
    if flag is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.5)
        remedy = f"Did you mean --{near[0]}?" if near else "--help lists the flags."
        raise FlagError(f"unknown argument: --{name}. {remedy}")
    return flag


def _value_after(flag: Flag, rest: list[str]) -> str:
    if isinstance(flag.default, bool):
        return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    if not rest or rest[0].startswith("--"):
        raise FlagError(f"--{flag.name} needs a value: --{flag.name}=VALUE.")
    return rest.pop(0)


def _convert(flag: Flag, text: str) -> Any:
    try:
        if isinstance(flag.default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return type(flag.default)(text)
    except (KeyError, ValueError) as error:
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[type(flag.default)]
        raise FlagError(f"--{flag.name} takes {expected}; got '{text}'.") from error
