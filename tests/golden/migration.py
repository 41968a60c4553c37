"""Checkpoints that cross over: written by tf.estimator and used here, and written here and used there.

    python -m tests.golden.migration train FOLDER     trains each model and keeps its checkpoint in FOLDER
    python -m tests.golden.migration use FOLDER       uses each checkpoint; numbers go to FOLDER/numbers.json

The stored ones are made by `train` under TensorFlow 2.15 in `checkpoints/tf_estimator` and under the current
one in `checkpoints/appliance`, and by `use` under TensorFlow 2.15 in both.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.golden.data import Columns, features, labels
from tests.golden.scenarios import BATCH, EVAL_BATCH, SCENARIOS, STEPS, FixedWeights, losses, plain

NAMES = ("combined_binary", "dnn_three_batch_norm")
"""Between them: two optimizers in one model, embeddings, Adam's slots, moving averages, several classes."""

STORED = Path(__file__).with_name("checkpoints")
NUMBERS = "numbers.json"
FURTHER_STEPS = 4
EXAMPLES = 5


def make(est: Any, name: str, model_dir: str) -> Any:
    """Return the Estimator of a scenario."""
    config = est.RunConfig(model_dir=model_dir, save_summary_steps=1, tf_random_seed=1)
    return SCENARIOS[name][0](est, config=config)


def dataset(name: str, batch: int) -> tf.data.Dataset:
    """Return the data of a scenario."""
    return tf.data.Dataset.from_tensor_slices((features(), labels(SCENARIOS[name][1]))).batch(batch)


def train(est: Any, name: str, folder: Path) -> None:
    """Train a model from fixed weights and put its last checkpoint into `folder`."""
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = make(est, name, model_dir)
        estimator.train(lambda: dataset(name, BATCH), steps=STEPS, hooks=[FixedWeights()])
        folder.mkdir(parents=True, exist_ok=True)
        prefix = Path(estimator.latest_checkpoint())
        for path in (*prefix.parent.glob(f"{prefix.name}.data-*"), prefix.with_name(f"{prefix.name}.index")):
            shutil.copy(path, folder / path.name)
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{prefix.name}"\n')


def use(est: Any, name: str, folder: Path) -> dict[str, Any]:
    """Evaluate, predict, export and train on from the checkpoint in `folder`; return all numbers."""
    with tempfile.TemporaryDirectory() as copied:
        model_dir = shutil.copytree(folder, Path(copied, "model"))
        estimator = make(est, name, str(model_dir))
        before = estimator.evaluate(lambda: dataset(name, EVAL_BATCH))
        predictions = list(estimator.predict(lambda: dataset(name, EXAMPLES).take(1)))
        exported = _exported(est, estimator, os.path.join(copied, "exported"))
        estimator.train(lambda: dataset(name, BATCH), steps=FURTHER_STEPS)
        after = estimator.evaluate(lambda: dataset(name, EVAL_BATCH))
        return {
            "before": {key: float(value) for key, value in sorted(before.items())},
            "predictions": plain(predictions),
            "exported": exported,
            "losses": losses(str(model_dir)),
            "after": {key: float(value) for key, value in sorted(after.items())},
        }


def _exported(est: Any, estimator: Any, folder: str) -> dict[str, Any]:
    """Export the model and return what its `predict` signature says of the first examples."""
    spec = tf.feature_column.make_parse_example_spec(Columns().linear())
    receiver = est.export.build_parsing_serving_input_receiver_fn(spec)
    path = os.fsdecode(estimator.export_saved_model(folder, receiver))
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], path)
        signature = meta.signature_def["predict"]
        feeds = {signature.inputs["examples"].name: [_example(row) for row in range(EXAMPLES)]}
        values = session.run({key: info.name for key, info in signature.outputs.items()}, feeds)
    rows = [{key: value[row] for key, value in values.items()} for row in range(EXAMPLES)]
    return plain(rows)


def _example(row: int) -> bytes:
    """Return the features of one example, serialised; empty words are left out, as they are missing."""
    example = tf.train.Example()
    for name, values in features().items():
        flat = values[row].reshape(-1).tolist() if values[row].ndim else [values[row].item()]
        entry = example.features.feature[name]
        if isinstance(flat[0], bytes):
            entry.bytes_list.value.extend(word for word in flat if word)
        elif isinstance(flat[0], float):
            entry.float_list.value.extend(flat)
        else:
            entry.int64_list.value.extend(flat)
    return example.SerializeToString()


def main() -> None:
    """Do what the command line says, with the Estimators that this TensorFlow has."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    est = getattr(tf, "estimator", None) or importlib.import_module("appliance.estimator")
    if verb == "train":
        for name in NAMES:
            train(est, name, folder / name)
    elif verb == "use":
        numbers = {name: use(est, name, folder / name) for name in NAMES}
        (folder / NUMBERS).write_text(json.dumps(numbers, indent=1) + "\n")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
