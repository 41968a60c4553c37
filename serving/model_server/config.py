"""ModelServerConfig protos, as in --model_config_file and HandleReloadConfigRequest, to ModelConfig
objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from serving.errors import FailedPrecondition, InvalidInput
from serving.policy import All, Latest, ModelConfig, Policy, Specific

PLATFORM = "tensorflow"


def read_file(path: str | Path) -> list[ModelConfig]:
    """Return the models of a text proto file.

    Raises:
        InvalidInput: the file is no ModelServerConfig.
        FailedPrecondition: its content is refused.
        OSError: it cannot be read.
    """
    message = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(Path(path).read_text(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Invalid protobuf file: '{path}': {error}") from error
    return model_configs(message)


def model_configs(message: Any) -> list[ModelConfig]:
    """Return the models of a ModelServerConfig.

    Raises:
        InvalidInput: a missing platform, a version policy without versions.
        FailedPrecondition: a config of another kind, or another platform.
    """
    if message.WhichOneof("config") == "custom_model_config":
        raise FailedPrecondition(
            "Cannot transition to requested config. It is only legal to transition from one "
            "ModelConfigList to another."
        )
    return [_model_config(entry) for entry in message.model_config_list.config]


def _model_config(entry: Any) -> ModelConfig:
    # `model_type` (deprecated) 1 is TENSORFLOW.
    platform = entry.model_platform or (PLATFORM if entry.model_type == 1 else "")
    if not platform:
        raise InvalidInput(
            f"Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform. Set model_platform: '{PLATFORM}' for model '{entry.name}'."
        )
    if platform != PLATFORM:
        raise FailedPrecondition(
            f"Model '{entry.name}' has model_platform '{platform}'; this server serves '{PLATFORM}' only."
        )
    return ModelConfig(entry.name, entry.base_path, _policy(entry), dict(entry.version_labels))


def _policy(entry: Any) -> Policy:
    policy = entry.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return All()
        case "specific":
            if not policy.specific.versions:
                raise InvalidInput(
                    f"model_version_policy 'specific' of model '{entry.name}' names no versions. "
                    "Name at least one."
                )
            return Specific(tuple(policy.specific.versions))
        case "latest":
            return Latest(max(policy.latest.num_versions, 1))
        case _:
            return Latest(1)
