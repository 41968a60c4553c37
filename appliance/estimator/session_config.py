"""Options of the sessions, where the caller has not given any."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from appliance.estimator.cluster import Cluster, TaskType


def default_session_config() -> Any:
    """Return the options of a session on this machine."""
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.meta_optimizer_iterations = 2  # RewriterConfig.ONE
    return config


def cluster_session_config(cluster: Cluster) -> Any:
    """Return the session options of a process that trains with parameter servers: it talks to those only.

    None for any other process.
    """
    filters = {
        TaskType.MASTER: ["/job:ps", "/job:master"],
        TaskType.CHIEF: ["/job:ps", "/job:chief"],
        TaskType.WORKER: ["/job:ps", f"/job:worker/task:{cluster.task_id}"],
        TaskType.PS: ["/job:ps", "/job:worker", "/job:chief", "/job:master"],
    }.get(cluster.task_type)
    if filters is None or not cluster.num_ps_replicas:
        return None
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_filters=filters)
    config.graph_options.rewrite_options.meta_optimizer_iterations = 2  # RewriterConfig.ONE
    return config
