"""Runs one version once, for the registry's gates: `predict {"x": [[1.0]]} gives y between 0 and 1`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from registry import Version


def predict(version: Version, signature_name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load a version beside whatever serves, run one signature, let it go, and return the outputs by alias.

    This is a `registry.predictions.Predictor`. Importing this module takes no TensorFlow; calling this does.

    Args:
        version: a ready version, on a local disk or on any store that fsspec speaks to.
        signature_name: of the signature to run.
        inputs: by alias, in the columnar form of REST; for one input of serialized `tf.Example`s also a list
            of objects of features.

    Raises:
        ServingError: it will not load, has no such signature, or refuses the inputs.
        OSError: its files cannot be read.
    """
    from serving.servable import Servable

    with _local(version.uri) as path:
        servable = Servable.load(path, name=version.model, version=version.version)
        try:
            return servable.run(signature_name, _tensors(servable, signature_name, inputs))
        finally:
            servable.close()


def _tensors(servable: Any, signature_name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    import numpy as np

    from serving import examples
    from serving.errors import UnknownSignatureKey
    from serving.json_tensors import PredictBody

    signature = servable.signatures.get(signature_name)
    if signature is None:
        raise UnknownSignatureKey(signature_name, list(servable.signatures))
    ((alias, values), *more) = inputs.items() or [("", None)]
    if not more and _are_examples(values) and alias in signature.inputs:
        return {alias: np.array(examples.from_json({"examples": values}), dtype=object)}
    body = json.dumps({"signature_name": signature_name, "inputs": inputs})
    return PredictBody(body.encode()).tensors(signature)


def _are_examples(values: Any) -> bool:
    """Return whether these are objects of features, and not strings in base 64."""
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(value, dict) and set(value) != {"b64"} for value in values)
    )


@contextmanager
def _local(uri: str) -> Iterator[str]:
    """Give the version's folder on this machine: its own, or a copy for as long as it is needed."""
    if "://" not in uri:
        yield uri
        return
    from fsspec.core import url_to_fs

    files, path = url_to_fs(uri)
    with tempfile.TemporaryDirectory(prefix="predict-") as folder:
        files.get(f"{path}/", f"{folder}/model/", recursive=True)
        yield f"{folder}/model"
