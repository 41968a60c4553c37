"""Small JSON files that are replaced whole, so that a killed process never leaves half of one."""

import json
import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

log = logging.getLogger(__name__)


def read_json(path: str) -> dict[str, Any] | None:
    """Return the object in the file, or None where there is no file or no whole JSON object in it."""
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            content = json.loads(file.read())
    except tf.errors.NotFoundError:
        return None
    except ValueError as error:
        log.warning("state_file_unreadable", extra={"path": path, "reason": str(error)})
        return None
    return content if isinstance(content, dict) else None


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Replace the file by this object: readers see the old one or the new one, never a part."""
    tf.io.gfile.makedirs(os.path.dirname(path))
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(content, indent=1))
    tf.io.gfile.rename(temporary, path, overwrite=True)


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics with NumPy scalars and arrays as Python numbers and lists, and bytes as text."""
    return {key: _plain(value) for key, value in metrics.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
