"""RunConfig: where an Estimator keeps its files, how often it saves and logs, and its place in a cluster."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from appliance.estimator.arguments import argument_names
from appliance.estimator.cluster import Cluster, TaskType, cluster_from, read_tf_config, spans_workers
from appliance.estimator.session_config import cluster_session_config, default_session_config

__all__ = ["RunConfig", "TaskType"]

log = logging.getLogger("appliance.estimator")

_DEFAULT: Any = object()
_DEFAULT_SAVE_SECONDS = 600
_STRATEGIES = ("train_distribute", "eval_distribute")

REPLACEABLE = (
    "model_dir",
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "train_distribute",
    "device_fn",
    "protocol",
    "eval_distribute",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
    "session_creation_timeout_secs",
    "checkpoint_save_graph_def",
    "jit_compile",
)


class RunConfig:
    """How an Estimator runs. All properties are read-only; `replace` returns a changed copy.

    The properties about the cluster come from the environment variable TF_CONFIG, read when the object is
    made.

    Args:
        model_dir: folder of checkpoints and summaries; may come from TF_CONFIG too, then both must be the
            same.
        tf_random_seed: seed of each graph.
        save_summary_steps: summaries are written every so many steps; 0 or None: never.
        save_checkpoints_steps, save_checkpoints_secs: at most one; how often to save. Neither given: every
            600 s. None
            for both: no checkpoints.
        session_config: a `tf.compat.v1.ConfigProto`.
        keep_checkpoint_max: how many recent checkpoints are kept; 0 or None: all.
        keep_checkpoint_every_n_hours: one checkpoint every so many hours is kept for good.
        log_step_count_steps: steps between two log lines and `global_step/sec` summaries; None: never.
        train_distribute, eval_distribute: a `tf.distribute.MirroredStrategy` or `OneDeviceStrategy`, to train
            or to evaluate on several devices of one machine. To train in step in the processes of a cluster,
            train_distribute may be a `tf.distribute.MultiWorkerMirroredStrategy`; each process evaluates by
            itself.
        experimental_distribute: a `DistributeConfig` of TensorFlow, or any object with its attributes
            `train_distribute` and `eval_distribute`: the same two strategies in one object.
        device_fn: function of one argument `op` that returns the device of each operation.
        protocol: "grpc", "grpc+verbs" or None.
        experimental_max_worker_delay_secs: longest wait, in seconds, before a worker starts.
        session_creation_timeout_secs: longest wait, in seconds, for the chief to initialise the model; of
            workers that train in step, for one another.
        checkpoint_save_graph_def: whether graph.pbtxt and .meta files are written.
        jit_compile: whether XLA compiles the train step, where it can, for each shape of batch that occurs.

    Raises:
        ValueError: a value is out of range, or both ways to time checkpoints are set.

    Source: `tf.estimator.RunConfig`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | None = _DEFAULT,
        save_checkpoints_secs: int | None = _DEFAULT,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Callable[[Any], Any] | None = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: float = 7200,
        checkpoint_save_graph_def: bool = True,
        jit_compile: bool = False,
    ) -> None:
        if save_checkpoints_steps is _DEFAULT and save_checkpoints_secs is _DEFAULT:
            save_checkpoints_steps, save_checkpoints_secs = None, _DEFAULT_SAVE_SECONDS
        elif save_checkpoints_secs is _DEFAULT:
            save_checkpoints_secs = None
        elif save_checkpoints_steps is _DEFAULT:
            save_checkpoints_steps = None
        elif save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise _both_intervals(save_checkpoints_steps, save_checkpoints_secs)
        train_distribute, eval_distribute = _strategies(
            experimental_distribute, train_distribute, eval_distribute
        )
        tf_config = read_tf_config()
        self._model_dir = _agreed_model_dir(model_dir, tf_config)
        self._tf_random_seed = tf_random_seed
        self._save_summary_steps = save_summary_steps
        self._save_checkpoints_steps = save_checkpoints_steps
        self._save_checkpoints_secs = save_checkpoints_secs
        self._session_config = session_config
        self._keep_checkpoint_max = keep_checkpoint_max
        self._keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self._log_step_count_steps = log_step_count_steps
        self._train_distribute = train_distribute
        self._device_fn = device_fn
        self._protocol = protocol
        self._eval_distribute = eval_distribute
        self._experimental_distribute = experimental_distribute
        self._experimental_max_worker_delay_secs = experimental_max_worker_delay_secs
        self._session_creation_timeout_secs = session_creation_timeout_secs
        self._checkpoint_save_graph_def = checkpoint_save_graph_def
        self._jit_compile = jit_compile
        _validate(self)
        self._service = _checked_service(tf_config.get("service"))
        self._cluster: Cluster = cluster_from(tf_config, worker_leads=spans_workers(train_distribute))
        if self._session_config is None and self._cluster.spec:
            self._session_config = cluster_session_config(self._cluster)

    @property
    def model_dir(self) -> str | None:
        """The folder of checkpoints and summaries."""
        return self._model_dir

    @property
    def tf_random_seed(self) -> int | None:
        """The seed of each graph."""
        return self._tf_random_seed

    @property
    def save_summary_steps(self) -> int | None:
        """Steps between two summaries."""
        return self._save_summary_steps

    @property
    def save_checkpoints_steps(self) -> int | None:
        """Steps between two checkpoints, or None."""
        return self._save_checkpoints_steps

    @property
    def save_checkpoints_secs(self) -> int | None:
        """Seconds between two checkpoints, or None."""
        return self._save_checkpoints_secs

    @property
    def session_config(self) -> Any:
        """The `tf.compat.v1.ConfigProto` of the sessions, or None."""
        return self._session_config

    @property
    def keep_checkpoint_max(self) -> int | None:
        """How many recent checkpoints are kept."""
        return self._keep_checkpoint_max

    @property
    def keep_checkpoint_every_n_hours(self) -> float:
        """Hours between two checkpoints that are kept for good."""
        return self._keep_checkpoint_every_n_hours

    @property
    def log_step_count_steps(self) -> int | None:
        """Steps between two log lines."""
        return self._log_step_count_steps

    @property
    def train_distribute(self) -> Any:
        """The strategy to train with, or None."""
        return self._train_distribute

    @property
    def eval_distribute(self) -> Any:
        """The strategy to evaluate with, or None."""
        return self._eval_distribute

    @property
    def experimental_distribute(self) -> Any:
        """What the strategies to train and to evaluate with came in, or None."""
        return self._experimental_distribute

    @property
    def device_fn(self) -> Callable[[Any], Any] | None:
        """The function that places operations, or None."""
        return self._device_fn

    @property
    def protocol(self) -> str | None:
        """The protocol between the processes of a cluster, or None."""
        return self._protocol

    @property
    def experimental_max_worker_delay_secs(self) -> int | None:
        """The longest wait, in seconds, before a worker starts, or None."""
        return self._experimental_max_worker_delay_secs

    @property
    def session_creation_timeout_secs(self) -> float:
        """The longest wait, in seconds, for the chief."""
        return self._session_creation_timeout_secs

    @property
    def checkpoint_save_graph_def(self) -> bool:
        """Whether graph.pbtxt and .meta files are written."""
        return self._checkpoint_save_graph_def

    @property
    def jit_compile(self) -> bool:
        """Whether XLA compiles the train step."""
        return self._jit_compile

    @property
    def service(self) -> dict[str, Any] | None:
        """The `service` entry of TF_CONFIG."""
        return self._service

    @property
    def cluster_spec(self) -> Any:
        """The training cluster; empty on one machine and for an evaluator."""
        return self._cluster.spec

    @property
    def task_type(self) -> str:
        """The role of this process, one of `TaskType`."""
        return self._cluster.task_type

    @property
    def task_id(self) -> int:
        """The index of this process among those of the same role."""
        return self._cluster.task_id

    @property
    def global_id_in_cluster(self) -> int | None:
        """The index of this process among all of the training cluster; None for an evaluator."""
        return self._cluster.global_id

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and summaries."""
        return self._cluster.is_chief

    @property
    def master(self) -> str:
        """The address of the session to train in."""
        return self._cluster.master

    @property
    def evaluation_master(self) -> str:
        """The address of the session to evaluate in."""
        return self._cluster.evaluation_master

    @property
    def num_ps_replicas(self) -> int:
        """How many parameter servers there are."""
        return self._cluster.num_ps_replicas

    @property
    def num_worker_replicas(self) -> int:
        """How many workers there are, the chief included."""
        return self._cluster.num_worker_replicas

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        """Return a copy with the same strategies, of which a process has but one."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            shared = name.endswith("_distribute")
            setattr(copied, name, value if shared else copy.deepcopy(value, memo))
        return copied

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with some properties changed.

        Setting one of `save_checkpoints_steps` and `save_checkpoints_secs` clears the other.

        Raises:
            ValueError: a property cannot be replaced or has a bad value.
        """
        unknown = sorted(set(changes) - set(REPLACEABLE))
        if unknown:
            raise ValueError(
                f"Replacing {', '.join(unknown)} is not supported. "
                f"Allowed properties are {list(REPLACEABLE)}."
            )
        if changes.get("experimental_distribute") is not None:
            given = [changes.get(name) for name in ("experimental_distribute", *_STRATEGIES)]
            found = zip(_STRATEGIES, _strategies(*given), strict=True)
            changes.update({name: strategy for name, strategy in found if strategy is not None})
        changed = copy.deepcopy(self)
        for name, value in changes.items():
            setattr(
                changed, f"_{name}", os.fspath(value) if name == "model_dir" and value is not None else value
            )
        steps, seconds = changes.get("save_checkpoints_steps"), changes.get("save_checkpoints_secs")
        if steps is not None and seconds is not None:
            raise _both_intervals(steps, seconds)
        if steps is not None:
            changed._save_checkpoints_secs = None
        elif seconds is not None:
            changed._save_checkpoints_steps = None
        _validate(changed)
        return changed


def _strategies(together: Any, train: Any, evaluate: Any) -> tuple[Any, Any]:
    """Return the strategies to train and to evaluate with, each given by itself or in the `together`."""
    if together is None:
        return train, evaluate
    if not all(hasattr(together, name) for name in _STRATEGIES):
        raise ValueError(
            "experimental_distribute must have the attributes train_distribute and eval_distribute, as a "
            f"DistributeConfig has. Given: {together!r}. Give a strategy as train_distribute."
        )
    if getattr(together, "remote_cluster", None):
        raise ValueError(
            "experimental_distribute.remote_cluster is not supported: no program here directs those of other "
            f"machines. Given: {together.remote_cluster!r}. Start the program once for each task, with "
            "TF_CONFIG set."
        )
    agreed = []
    for name, given in zip(_STRATEGIES, (train, evaluate), strict=True):
        other = getattr(together, name)
        if given is not None and other is not None:
            raise ValueError(
                f"Either `{name}` or `experimental_distribute.{name}` can be set. "
                f"Given: {given!r} and {other!r}."
            )
        agreed.append(given if other is None else other)
    return agreed[0], agreed[1]


def _both_intervals(steps: int, seconds: float) -> ValueError:
    return ValueError(
        "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set. "
        f"Given: {steps} steps and {seconds} s. Set one of them."
    )


def _agreed_model_dir(model_dir: str | os.PathLike[str] | None, tf_config: dict[str, Any]) -> str | None:
    path = None if model_dir is None else os.fspath(model_dir)
    if path == "":
        raise ValueError("model_dir should be non-empty. Leave it out, or give a folder.")
    elsewhere = tf_config.get("model_dir")
    if elsewhere == "":
        raise ValueError("model_dir in TF_CONFIG should be non-empty. Leave it out, or give a folder.")
    if elsewhere and path and elsewhere != path:
        raise ValueError(
            "`model_dir` provided in RunConfig construct, if set, must have the same value "
            f"as the model_dir in TF_CONFIG. model_dir: {path}; TF_CONFIG: {elsewhere}."
        )
    return path or elsewhere


def _checked_service(service: Any) -> dict[str, Any] | None:
    if service is not None and not isinstance(service, dict):
        raise TypeError(f'If "service" is set in TF_CONFIG, it must be a dict. Given {type(service)}')
    return service


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("model_dir", bool, "should be non-empty"),
    ("save_summary_steps", lambda steps: steps >= 0, "should be >= 0"),
    ("save_checkpoints_steps", lambda steps: steps >= 0, "should be >= 0"),
    ("save_checkpoints_secs", lambda seconds: seconds >= 0, "should be >= 0"),
    (
        "session_config",
        lambda config: isinstance(config, tf.compat.v1.ConfigProto),
        "must be instance of ConfigProto",
    ),
    ("keep_checkpoint_max", lambda count: count >= 0, "should be >= 0"),
    ("keep_checkpoint_every_n_hours", lambda hours: hours > 0, "should be > 0"),
    ("log_step_count_steps", lambda steps: steps > 0, "should be > 0"),
    ("tf_random_seed", lambda seed: isinstance(seed, int), "must be integer."),
    (
        "experimental_max_worker_delay_secs",
        lambda delay: isinstance(delay, int),
        "must be an integer if set.",
    ),
    ("session_creation_timeout_secs", lambda seconds: seconds > 0, "should be > 0"),
    (
        "device_fn",
        lambda function: callable(function) and argument_names(function) == ("op",),
        'must be callable with exactly one argument "op".',
    ),
    ("protocol", lambda protocol: protocol in ("grpc", "grpc+verbs"), "should be grpc or grpc+verbs"),
)


def _validate(config: RunConfig) -> None:
    for name, allowed, message in _RULES:
        value = getattr(config, name)
        if value is not None and not allowed(value):
            raise ValueError(f"{name} {message} Given: {value!r}")


def complete(config: RunConfig | None, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Return the config with the model_dir and session options that hold for an Estimator.

    Raises:
        ValueError: it is no RunConfig, or names another model_dir.
    """
    config = RunConfig() if config is None else config
    if not isinstance(config, RunConfig):
        raise ValueError(f"config must be an instance of `RunConfig`, but provided {config!r}.")
    if config.session_config is None:
        config = config.replace(session_config=default_session_config())
    path = None if model_dir is None else os.fspath(model_dir)
    if path is not None and config.model_dir is not None and config.model_dir != path:
        raise ValueError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values. "
            f"In constructor: {path!r}, in `RunConfig`: {config.model_dir!r}."
        )
    if path:
        return config.replace(model_dir=path)
    if config.model_dir is None:
        temporary = tempfile.mkdtemp()
        log.warning("temporary_model_dir", extra={"model_dir": temporary})
        return config.replace(model_dir=temporary)
    return config
