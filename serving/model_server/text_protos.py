"""The text files that tensorflow_model_server takes and `tensorflow-serving-api` has no Python modules for.

The messages are declared here, by field names and numbers, and made by protobuf itself; so the files are
read by its own text parser, with its errors.

References: TensorFlow Serving, servables/tensorflow/session_bundle_config.proto, config/ssl_config.proto,
config/monitoring_config.proto.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2

from serving.batching import BatchingParameters
from serving.errors import InvalidInput

_PACKAGE = "appliance.serving"
_FIELD = descriptor_pb2.FieldDescriptorProto
_INT64 = ".google.protobuf.Int64Value"
_TEXT = ".google.protobuf.StringValue"

# name -> (number, type); a type is a scalar's, or the full name of a message. A trailing * means repeated.
_MESSAGES: dict[str, dict[str, tuple[int, int | str]]] = {
    "BatchingParameters": {
        "max_batch_size": (1, _INT64),
        "batch_timeout_micros": (2, _INT64),
        "max_enqueued_batches": (3, _INT64),
        "num_batch_threads": (4, _INT64),
        "thread_pool_name": (5, _TEXT),
        "allowed_batch_sizes*": (6, _FIELD.TYPE_INT64),
        "pad_variable_length_inputs": (7, _FIELD.TYPE_BOOL),
        "enable_large_batch_splitting": (8, ".google.protobuf.BoolValue"),
        "max_execution_batch_size": (9, _INT64),
    },
    "SSLConfig": {
        "server_key": (1, _FIELD.TYPE_STRING),
        "server_cert": (2, _FIELD.TYPE_STRING),
        "custom_ca": (3, _FIELD.TYPE_STRING),
        "client_verify": (4, _FIELD.TYPE_BOOL),
    },
    "PrometheusConfig": {"enable": (1, _FIELD.TYPE_BOOL), "path": (2, _FIELD.TYPE_STRING)},
    "MonitoringConfig": {"prometheus_config": (1, f".{_PACKAGE}.PrometheusConfig")},
}


def _declared() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="appliance/text_protos.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            repeated = name.endswith("*")
            field = message.field.add(
                name=name.removesuffix("*"),
                number=number,
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
            )
            if isinstance(kind, str):
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, kind
            else:
                field.type = kind
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _declared()


def read(path: str | Path, message_name: str) -> Any:
    """Return the message of this name in a text file.

    Raises:
        InvalidInput: the file is no such message.
        OSError: it cannot be read.
    """
    descriptor = _POOL.FindMessageTypeByName(f"{_PACKAGE}.{message_name}")
    return read_into(path, message_factory.GetMessageClass(descriptor)())


def read_into(path: str | Path, message: Any) -> Any:
    """Fill a message from a text file and return it.

    Raises: as `read`.
    """
    try:
        return text_format.Parse(Path(path).read_text(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Invalid protobuf file: '{path}': {error}") from error


def batching_parameters(path: str | Path) -> BatchingParameters:
    """Return the batching parameters in a text file; what it leaves out has its default.

    Raises:
        InvalidInput: it holds something else, or values that cannot work. OSError: it cannot be read.
    """
    message = read(path, "BatchingParameters")
    wrapped = (
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
        "enable_large_batch_splitting",
        "max_execution_batch_size",
    )
    values = {name: getattr(message, name).value for name in wrapped if message.HasField(name)}
    try:
        return BatchingParameters(
            allowed_batch_sizes=tuple(message.allowed_batch_sizes),
            pad_variable_length_inputs=message.pad_variable_length_inputs,
            **values,
        )
    except InvalidInput as error:
        raise InvalidInput(f"Cannot use the batching parameters in '{path}': {error}") from error
