"""Training in step by several processes, each with a MultiWorkerMirroredStrategy.

Every worker builds the model, reads its own share of the data, and sums its gradients with those of the
others, so that all have the same variables after each step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute.values import SyncOnReadVariable
from tensorflow.python.ops import resource_variable_ops

from appliance.estimator import checkpoints
from appliance.estimator.agreement import Agreement, sum_of_workers, waiting_options, workers_answer
from appliance.estimator.cluster import TaskType, spans_workers
from appliance.estimator.columnar import columnar
from appliance.estimator.distributed_variables import one_copy_of_metrics
from appliance.estimator.input_graph import Inputs, called_dataset, host_fed_constants, prefetched, split
from appliance.estimator.run_config import RunConfig

_servers: dict[str, Any] = {}
"""The servers of this process by address. They can be neither stopped nor started anew."""


def is_shared(config: RunConfig) -> bool:
    """Return whether several workers train together, in step."""
    return spans_workers(config.train_distribute) and config.num_worker_replicas > 1


def check_cluster(config: RunConfig) -> None:
    """Check that the strategy and TF_CONFIG describe the same cluster.

    Raises:
        ValueError: they do not, or there is a task that has no part in it.
    """
    spec = config.train_distribute.extended._cluster_spec
    if config.task_type == TaskType.EVALUATOR:
        return
    known = {} if spec is None else spec.as_dict()
    if known != config.cluster_spec.as_dict():
        raise ValueError(
            "The MultiWorkerMirroredStrategy and the RunConfig are of different clusters. The strategy's: "
            f"{known}; in TF_CONFIG: {config.cluster_spec.as_dict()}. Set TF_CONFIG before either is made, "
            "the same all the time."
        )
    for job in (TaskType.PS, TaskType.MASTER):
        if job in known:
            raise ValueError(
                f"The cluster in TF_CONFIG has a {job!r} task, which has no part in training with a "
                f"MultiWorkerMirroredStrategy: {known}. Describe a chief and workers."
            )


def session_target(config: RunConfig) -> str:
    """Return the address of the session to train in; start the server of this task where there is none."""
    extended = config.train_distribute.extended
    spec = extended._cluster_spec
    if spec is None:
        return ""
    address = spec.task_address(config.task_type, config.task_id)
    # A strategy that was made while TensorFlow was executing eagerly has started one.
    if not getattr(extended, "_std_server_started", False) and address not in _servers:
        options = session_options(config)
        del options.device_filters[:]
        _servers[address] = tf.distribute.Server(
            {job: tasks for job, tasks in spec.as_dict().items() if job != TaskType.EVALUATOR},
            job_name=config.task_type,
            task_index=config.task_id,
            config=options,
            protocol=config.protocol,
        )
    return f"grpc://{address}"


def session_options(config: RunConfig) -> Any:
    """Return the options of the session to train in: the config's, with what collective operations need."""
    options = tf.compat.v1.ConfigProto()
    options.CopyFrom(config.session_config)
    # Otherwise the server keeps the variables, for the next session to find, whose model may be another.
    options.isolate_session_state = True
    return config.train_distribute.extended._update_config_proto(options)


class JoiningSessionCreator(tf.compat.v1.train.SessionCreator):
    """Opens the session of a worker once all workers are there.

    Each restores the newest checkpoint of `config.model_dir`, which must be the same for all; where there is
    none, the variables of all begin with the values of the first worker's.
    """

    def __init__(self, config: RunConfig, scaffold: Any) -> None:
        self._config = config
        self._options = session_options(config)
        self._target = session_target(config)
        self._opener = tf.compat.v1.train.ChiefSessionCreator(
            scaffold=scaffold,
            checkpoint_dir=config.model_dir,
            master=self._target,
            config=self._options,
        )
        newest = tf.train.latest_checkpoint(config.model_dir)
        step = -1 if newest is None else checkpoints.global_step(newest)
        here = config.train_distribute.extended._id_in_cluster
        steps = tf.one_hot(here, config.num_worker_replicas, step, 0, dtype=tf.int64)
        self._steps = sum_of_workers(config, steps)

    def create_session(self) -> Any:
        """Open the session.

        Raises:
            WorkerLost: another worker does not come, or goes while the variables are initialised.
            ValueError: workers see different checkpoints.
        """
        with workers_answer(self._config):
            with tf.compat.v1.Session(self._target, config=self._options) as session:
                steps = session.run(self._steps)
            if len(set(steps)) == 1:
                return self._opener.create_session()
        found = ["none" if step < 0 else int(step) for step in steps]
        raise ValueError(
            f"The workers see different checkpoints in {self._config.model_dir}; their global steps, by "
            f"worker: {found}. Give all of them the same model_dir, on storage that they share."
        )


def shared_inputs(config: RunConfig, input_fn: Callable[..., Any], optional: Mapping[str, Any]) -> Inputs:
    """Call `input_fn` in the default graph and return its tensors, with one batch for each replica here.

    Args:
        config: of this worker.
        input_fn: returns a Dataset; its argument `input_context` tells which share of the data.
        optional: arguments that it gets if it names them.

    Returns:
        Inputs, each value with a tensor for each replica, with an agreement.

    Raises:
        ValueError: it returns no Dataset.
    """
    extended = config.train_distribute.extended
    replicas = len(extended.worker_devices)
    with tf.device("/cpu:0"), host_fed_constants(tf.compat.v1.get_default_graph()) as arrays:
        given = {**optional, "input_context": extended._make_input_context()}
        dataset = columnar(called_dataset(input_fn, given, "train_distribute"))
        iterator = tf.compat.v1.data.make_initializable_iterator(prefetched(dataset, 2 * replicas))
        batches: list[Any] = []
        taken: list[Any] = []
        for _ in range(replicas):
            with tf.control_dependencies(taken[-1:]):
                element, has_value = _held(iterator)
            batches.append(split(element))
            taken.append(has_value)
        agreement = Agreement(config, tf.logical_not(tf.reduce_all(taken)))
    features, labels = distribute_utils.regroup(tuple(batches))
    return Inputs(features, labels, iterator.initializer, False, arrays, agreement)


def _held(iterator: Any) -> tuple[Any, Any]:
    """Return the batch that was taken last, and the operation that takes the next: whether there is one."""
    optional = iterator.get_next_as_optional()
    (variant,) = tf.nest.flatten(optional, expand_composites=True)
    holder = resource_variable_ops.ResourceVariable(
        tf.raw_ops.OptionalNone(),
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        name="next_batch",
    )
    with tf.control_dependencies([holder.assign(variant, read_value=False)]):
        has_value = tf.identity(optional.has_value())
    held = tf.nest.pack_sequence_as(optional, [holder.read_value()], expand_composites=True)
    return held.get_value(), has_value


@contextlib.contextmanager
def in_step(config: RunConfig) -> Iterator[None]:
    """Build what the workers do together in the body; nothing is different for one that trains alone.

    No exchange waits for ever. And each worker keeps the metrics of its own replicas: TensorFlow sums them
    over all workers when they are read, so that a summary that only the chief writes would wait for the
    others.
    """
    if not is_shared(config):
        yield
        return
    extended = config.train_distribute.extended
    given = extended._communication_options
    extended._communication_options = waiting_options(config).merge(given)
    try:
        with tf.variable_creator_scope(one_copy_of_metrics):
            yield
    finally:
        extended._communication_options = given


def with_averages(config: RunConfig, train_op: Any) -> tuple[Any, list[Any]]:
    """Return the train op with what keeps the moving averages of all workers the same, and hooks for it.

    Each replica moves its own, by its own batches, and their mean is what counts. TensorFlow takes the mean
    when it is read, for a checkpoint for instance, and that takes all workers; here it is taken in every
    step, and each worker has it.

    Raises:
        ValueError: a variable is the sum over the replicas.
    """
    strategy = config.train_distribute
    saved = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    apart = [variable for variable in saved if isinstance(variable, SyncOnReadVariable)]
    for variable in apart:
        if variable.aggregation == tf.VariableAggregation.SUM:
            raise ValueError(
                f"The variable {variable.name} is the sum over the replicas, which no worker can save by "
                "itself. With a MultiWorkerMirroredStrategy make it a local variable, or take the mean."
            )
    saved[:] = [v.values[0] if isinstance(v, SyncOnReadVariable) else v for v in saved]
    together = [v for v in apart if v.aggregation == tf.VariableAggregation.MEAN]
    with tf.control_dependencies([train_op]):
        means = [strategy.reduce(tf.distribute.ReduceOp.MEAN, variable, axis=None) for variable in together]
    moved = [
        copy.assign(mean, read_value=False)
        for variable, mean in zip(together, means, strict=True)
        for copy in variable.values
    ]
    first = [copy.assign(v.values[0].read_value(), read_value=False) for v in apart for copy in v.values[1:]]
    return tf.group(train_op, *moved), [_RunOnce(tf.group(*first))] if first else []


class _RunOnce(tf.compat.v1.train.SessionRunHook):
    """Runs an operation in each new session."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)
