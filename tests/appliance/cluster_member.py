"""One task of a cluster that trains y = 2 x: `python -m tests.appliance.cluster_member MODEL_DIR STOP`.

TF_CONFIG says which. It prints what train_and_evaluate returned. Once a worker has made a step and there is
a checkpoint of step STOP, the early-stopping hook of the chief stops all.
"""

import json
import sys
from pathlib import Path

from appliance.estimator import (
    EvalSpec,
    RunConfig,
    SessionRunHook,
    TrainSpec,
    experimental,
    train_and_evaluate,
)
from appliance.estimator.checkpoints import global_step
from appliance.estimator.estimator import Estimator
from appliance.estimator.json_state import plain_metrics
from tests.appliance.tiny_experiment import data, model_fn


class Joining(SessionRunHook):
    """Makes a file after each step."""

    def __init__(self, path):
        self._path = path

    def after_run(self, run_context, run_values):
        self._path.touch()


def main():
    model_dir, stop = Path(sys.argv[1]), int(sys.argv[2])
    joined = model_dir.parent / "worker_joined"
    config = RunConfig(
        model_dir=str(model_dir),
        save_checkpoints_steps=50,
        experimental_max_worker_delay_secs=0,
        log_step_count_steps=None,
        save_summary_steps=None,
    )
    estimator = Estimator(model_fn, config=config, params={"rate": 0.002})

    def should_stop():
        return joined.exists() and global_step(estimator.latest_checkpoint()) >= stop

    hook = experimental.make_early_stopping_hook(
        estimator, should_stop, run_every_secs=None, run_every_steps=10
    )
    hooks = [hook, Joining(joined)] if config.task_type == "worker" else [hook]
    metrics, _ = train_and_evaluate(
        estimator,
        TrainSpec(lambda: data(None), hooks=hooks),
        EvalSpec(lambda: data(1), start_delay_secs=0, throttle_secs=0),
    )
    print(json.dumps(metrics and plain_metrics(metrics)), flush=True)


if __name__ == "__main__":
    main()
