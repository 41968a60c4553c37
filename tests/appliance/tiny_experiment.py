"""An experiment that trains in milliseconds: y = 2 x by one weight. Its evaluations can be held up by files.

`python -m tests.appliance.tiny_experiment MODEL_DIR` trains until it is killed and prints its events.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from appliance.estimator import StopAtStepHook, continuous
from appliance.estimator.estimator import Estimator
from appliance.estimator.experiment import Experiment
from appliance.estimator.export import build_raw_serving_input_receiver_fn
from appliance.estimator.export_strategy import ExportStrategy, make_export_strategy
from appliance.estimator.exporters import BestExporter, FinalExporter
from appliance.estimator.model_fn import EstimatorSpec, ModeKeys
from appliance.estimator.run_config import RunConfig
from tests.waiting import wait_until

DEADLINE_SECONDS = 120
CHECKPOINT_STEPS = 10


def model_fn(features, labels, mode, params):
    weight = tf.compat.v1.get_variable("weight", initializer=0.0)
    prediction = weight * features["x"]
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"y": prediction})
    loss = tf.reduce_mean(tf.square(prediction - labels))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(params["rate"])
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def data(batches):
    x = np.array([[1.0], [2.0]], np.float32)
    dataset = tf.data.Dataset.from_tensors(({"x": x}, 2 * x))
    return dataset.repeat(batches)


def failing_data():
    def batches():
        for _ in range(15):
            yield np.float32([[1.0]]), np.float32([[2.0]])
        raise OSError("the disk is gone")

    shape = tf.TensorSpec([1, 1], tf.float32)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=(shape, shape))
    return dataset.map(lambda x, y: ({"x": x}, y))


def hold(folder):
    """Say which evaluation this is, and wait until it is let go."""
    number = len(list(Path(folder).glob("evaluating-*"))) + 1
    (Path(folder) / f"evaluating-{number}").touch()
    wait_until(
        (Path(folder) / f"release-{number}").exists, f"release of evaluation {number}", DEADLINE_SECONDS
    )


def experiment(run_config, params):
    def eval_input_fn():
        if "hold" in params:
            hold(params["hold"])
        return data(1)

    def broken_export(estimator, export_dir_base, eval_result):
        raise LookupError("no room for exports")

    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 1], tf.float32)})
    return Experiment(
        Estimator(model_fn, config=run_config, params={"rate": params.get("rate", 0.01)}),
        train_input_fn=failing_data if params.get("broken_training") else lambda: data(params.get("batches")),
        eval_input_fn=eval_input_fn,
        train_steps=params.get("steps"),
        eval_steps=None,
        eval_delay_secs=0,
        continuous_eval_throttle_secs=0,
        train_monitors=[StopAtStepHook(last_step=params["stop_at"])] if "stop_at" in params else (),
        export_strategies=[
            make_export_strategy(receiver_fn, exports_to_keep=1, name="latest"),
            BestExporter("best", receiver_fn),
            ExportStrategy("broken", broken_export)
            if "broken_export" in params
            else FinalExporter("final", receiver_fn),
        ],
    )


def newest_step(model_dir):
    """Return the step of the newest checkpoint; 0: there is none."""
    newest = tf.train.latest_checkpoint(model_dir)
    return int(newest.rpartition("-")[2]) if newest else 0


def evaluated_step(model_dir):
    """Return the step of the last checkpoint that was evaluated; 0: none was."""
    record = model_dir / "eval" / "evaluated.json"
    last = json.loads(record.read_text())["last"] if record.exists() else None
    return last["step"] if last else 0


def no_experiment(run_config, params):
    return 3


def config(model_dir, **changes):
    return RunConfig(
        model_dir=str(model_dir), save_checkpoints_steps=CHECKPOINT_STEPS, tf_random_seed=1, **changes
    )


def main():
    def print_event(event):
        print(json.dumps(event), flush=True)

    def wait_for_the_evaluator():
        wait_until(is_near, "an evaluation", DEADLINE_SECONDS)
        return False

    def is_near():
        return newest_step(model_dir) - evaluated_step(model_dir) <= 3 * CHECKPOINT_STEPS

    model_dir = Path(sys.argv[1])
    continuous.run(
        experiment, config(model_dir), {}, on_event=print_event, should_stop=wait_for_the_evaluator
    )


if __name__ == "__main__":
    main()
