"""What a process does as a task of a cluster, as TF_CONFIG makes it one."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from appliance.estimator import checkpoints
from appliance.estimator.cluster import TaskType, spans_workers
from appliance.estimator.evaluation_policy import TrainingEnd
from appliance.estimator.json_state import read_json, write_json
from appliance.estimator.run_config import RunConfig

log = logging.getLogger("appliance.estimator")

_END_FILE = "training_ended.json"
_SECONDS_PER_WORKER = 5
_LONGEST_DELAY_SECONDS = 60


def start_server(config: RunConfig) -> Any:
    """Start this task's server, through which the tasks of the cluster reach one another.

    Returns:
        the `tf.distribute.Server`; None where the cluster is this process alone, which needs none, and where
        the strategy brings its own.

    Raises:
        ValueError: TF_CONFIG describes no cluster, or one that cannot train.
    """
    if not config.cluster_spec:
        raise ValueError(
            "Could not start a server: this process is no task of a cluster. Describe the cluster, and the "
            "task of this process, in TF_CONFIG."
        )
    if not config.master or spans_workers(config.train_distribute):
        return None
    if config.num_ps_replicas == 0:
        raise ValueError(
            f"The cluster in TF_CONFIG has no parameter server: {config.cluster_spec.as_dict()}. Its tasks "
            'could share no variables. Add a "ps" task, or give RunConfig a train_distribute of '
            "tf.distribute.MultiWorkerMirroredStrategy."
        )
    gpu_options = config.session_config.gpu_options if config.session_config else None
    server = tf.distribute.Server(
        config.cluster_spec,
        job_name=config.task_type,
        task_index=config.task_id,
        config=tf.compat.v1.ConfigProto(gpu_options=gpu_options),
        protocol=config.protocol,
    )
    log.info("server_started", extra={"task": f"{config.task_type}:{config.task_id}"})
    return server


def worker_delay_seconds(config: RunConfig) -> float:
    """Return how long a worker waits before it trains, so that not all begin with the same first steps."""
    if config.task_type != TaskType.WORKER or spans_workers(config.train_distribute):
        return 0
    longest = config.experimental_max_worker_delay_secs
    longest = _LONGEST_DELAY_SECONDS if longest is None else longest
    return min(longest, (config.task_id + 1) * _SECONDS_PER_WORKER)


def training_device(config: RunConfig) -> Callable[[Any], Any] | None:
    """Return what places the operations of a training graph: variables on the parameter servers in turn."""
    if config.device_fn is not None or config.num_ps_replicas == 0:
        return config.device_fn
    return tf.compat.v1.train.replica_device_setter(
        worker_device=f"/job:{config.task_type}/task:{config.task_id}", cluster=config.cluster_spec
    )


@contextlib.contextmanager
def announced_end(model_dir: str) -> Iterator[None]:
    """Let evaluators know, by a file in `model_dir`, when the training in the body ends, and how."""
    path = os.path.join(model_dir, _END_FILE)
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)
    final = False
    try:
        yield
        final = True
    finally:
        step = checkpoints.global_step(tf.train.latest_checkpoint(model_dir))
        write_json(path, {"final": final, "step": step})


class AnnouncedEnd:
    """The signals of a training in another process, which ends as `announced_end` says."""

    def __init__(self, model_dir: str, check_interval_secs: float) -> None:
        """Look at `model_dir` every `check_interval_secs` seconds."""
        self._model_dir = model_dir
        self._check_interval_secs = check_interval_secs

    def ended(self) -> TrainingEnd | None:
        """Return how training has ended, None while it goes on."""
        said = read_json(os.path.join(self._model_dir, _END_FILE))
        # A training that went on from there has written newer checkpoints: then the file is an old one.
        newest = checkpoints.global_step(tf.train.latest_checkpoint(self._model_dir))
        return TrainingEnd(final=said["final"]) if said is not None and said["step"] == newest else None

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(max(seconds, self._check_interval_secs))
