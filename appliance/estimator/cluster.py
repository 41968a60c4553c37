"""What TF_CONFIG says about the cluster and this process's place in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


class TaskType:
    """The roles of the processes of a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


@dataclass(frozen=True)
class Cluster:
    """This process's place in a cluster, as TF_CONFIG describes it.

    Fields:
        spec: the training cluster; empty for one machine and for an evaluator.
        task_type, task_id: the role of this process and its index among those of the same role.
        is_chief: whether this process writes checkpoints and summaries.
        master, evaluation_master: address of the session to train or evaluate in; "" means this process.
        num_ps_replicas, num_worker_replicas: how many parameter servers, and workers with the chief, there
            are.
        global_id: the index of this process among all: the chief first, then workers, then parameter servers.
            None for an evaluator.
    """

    spec: Any
    task_type: str
    task_id: int
    is_chief: bool
    master: str
    evaluation_master: str
    num_ps_replicas: int
    num_worker_replicas: int
    global_id: int | None


def spans_workers(strategy: Any) -> bool:
    """Return whether this is a strategy with which several processes train together."""
    return isinstance(
        strategy,
        tf.distribute.MultiWorkerMirroredStrategy
        | tf.compat.v1.distribute.experimental.MultiWorkerMirroredStrategy,
    )


def read_tf_config() -> dict[str, Any]:
    """Return the content of the environment variable TF_CONFIG, `{}` when it is not set.

    Raises:
        ValueError: it is not a JSON object.
    """
    text = os.environ.get("TF_CONFIG", "") or "{}"
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG must be a JSON object. Given: {text!r}") from error
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object. Given: {text!r}")
    return config


def cluster_from(config: Mapping[str, Any], worker_leads: bool = False) -> Cluster:
    """Return the place in the cluster that a parsed TF_CONFIG describes.

    Args:
        config: the content of TF_CONFIG.
        worker_leads: whether, where there is no chief, the first worker is one.

    Raises:
        ValueError: the task, its index, or the nodes of the cluster do not fit together.
    """
    spec = tf.train.ClusterSpec(config.get("cluster", {}))
    task = config.get("task", {})
    if not spec:
        return _local(spec, config, task)
    chief = TaskType.MASTER if TaskType.MASTER in spec.jobs else TaskType.CHIEF
    if chief == TaskType.MASTER and TaskType.CHIEF in spec.jobs:
        raise ValueError("If `master` node exists in `cluster`, job `chief` is not supported.")
    if worker_leads and chief not in spec.jobs and TaskType.WORKER in spec.jobs:
        chief = TaskType.WORKER
    task_type, task_id = _checked_task(spec, task, chief)
    if task_type == TaskType.EVALUATOR:
        if chief == TaskType.MASTER:
            raise ValueError("If `master` node exists in `cluster`, task_type `evaluator` is not supported.")
        return Cluster(
            spec=tf.train.ClusterSpec({}),
            task_type=task_type,
            task_id=task_id,
            is_chief=False,
            master="",
            evaluation_master=config.get("eval_session_master", ""),
            num_ps_replicas=0,
            num_worker_replicas=0,
            global_id=None,
        )
    tasks = spec.as_dict()
    return Cluster(
        spec=spec,
        task_type=task_type,
        task_id=task_id,
        is_chief=task_type == chief and task_id == 0,
        master=_session_master(spec, task_type, task_id, config),
        evaluation_master="",
        num_ps_replicas=len(tasks.get(TaskType.PS, ())),
        num_worker_replicas=sum(len(tasks.get(job, ())) for job in {TaskType.WORKER, chief}),
        global_id=_global_id(spec, task_type, task_id, chief),
    )


def _local(spec: Any, config: Mapping[str, Any], task: Mapping[str, Any]) -> Cluster:
    task_type, task_id = task.get("type", TaskType.WORKER), int(task.get("index", 0))
    if task_type != TaskType.WORKER:
        raise ValueError(
            f'If "cluster" is not set in TF_CONFIG, task type must be WORKER. Given: {task_type!r}'
        )
    if task_id != 0:
        raise ValueError(f'If "cluster" is not set in TF_CONFIG, task index must be 0. Given: {task_id}')
    return Cluster(
        spec=spec,
        task_type=task_type,
        task_id=task_id,
        is_chief=True,
        master=config.get("session_master", ""),
        evaluation_master=config.get("eval_session_master", ""),
        num_ps_replicas=0,
        num_worker_replicas=1,
        global_id=0,
    )


def _checked_task(spec: Any, task: Mapping[str, Any], chief: str) -> tuple[str, int]:
    if chief not in spec.jobs:
        raise ValueError(
            f'If "cluster" is set in TF_CONFIG, it must have one "{chief}" node. Given: {spec.as_dict()}'
        )
    if chief != TaskType.WORKER and len(spec.job_tasks(chief)) > 1:
        raise ValueError(
            f'The "cluster" in TF_CONFIG must have only one "{chief}" node. Given: {spec.as_dict()}'
        )
    task_type, index = task.get("type"), task.get("index")
    if not task_type:
        raise ValueError(
            'If "cluster" is set in TF_CONFIG, task type must be set. Add {"task": {"type": ...}}.'
        )
    if index is None:
        raise ValueError(
            'If "cluster" is set in TF_CONFIG, task index must be set. Add {"task": {"index": ...}}.'
        )
    task_id = int(index)
    if task_id < 0:
        raise ValueError(f"Task index must be non-negative number. Given: {task_id}")
    if task_type == TaskType.EVALUATOR:
        return task_type, task_id
    if task_type not in spec.jobs:
        raise ValueError(
            f"{task_type} is not a valid task_type in the cluster_spec of TF_CONFIG: {spec.as_dict()}"
        )
    if task_id >= len(spec.job_tasks(task_type)):
        raise ValueError(
            f"{task_id} is not a valid task_id for task_type {task_type} in the cluster_spec of TF_CONFIG: "
            f"{spec.as_dict()}"
        )
    return task_type, task_id


def _session_master(spec: Any, task_type: str, task_id: int, config: Mapping[str, Any]) -> str:
    if "session_master" in config:
        return config["session_master"]
    if len(spec.jobs) == 1 and len(spec.job_tasks(spec.jobs[0])) == 1:
        # A cluster of one needs no server: a session in this process is faster.
        return ""
    return f"grpc://{spec.job_tasks(task_type)[task_id]}"


def _global_id(spec: Any, task_type: str, task_id: int, chief: str) -> int:
    others = sorted(job for job in spec.jobs if job not in (chief, TaskType.PS))
    before = 0
    for job in [chief, *others, TaskType.PS]:
        if job == task_type:
            break
        before += len(spec.job_tasks(job))
    return before + task_id
