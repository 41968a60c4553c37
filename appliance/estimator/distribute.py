"""Training with a strategy of tf.distribute: one copy of the model on each device, gradients summed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.training import training_util

from appliance.estimator import multi_worker
from appliance.estimator.cluster import spans_workers
from appliance.estimator.columnar import columnar
from appliance.estimator.distributed_variables import leave_out_copies
from appliance.estimator.input_graph import Inputs, build_inputs, called_dataset, host_fed_constants, split
from appliance.estimator.keras_losses import keras_losses_as_on_one_device
from appliance.estimator.model_fn import EstimatorSpec
from appliance.estimator.run_config import RunConfig

_OF_ONE_MACHINE = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


def with_devices(config: RunConfig) -> RunConfig:
    """Return the config with sessions that have the devices of its strategies.

    Raises:
        ValueError: a strategy cannot be used, or not where it is used.
    """
    _check_training(config)
    config = config.replace(eval_distribute=_for_evaluation(config.eval_distribute))
    virtual = max(_cpus(config.train_distribute), _cpus(config.eval_distribute))
    if virtual < 2:
        return config
    options = tf.compat.v1.ConfigProto.FromString(config.session_config.SerializeToString())
    if "CPU" not in options.device_count:
        options.device_count["CPU"] = virtual
    return config.replace(session_config=options)


def _check_training(config: RunConfig) -> None:
    strategy = config.train_distribute
    if strategy is None:
        return
    if spans_workers(strategy):
        multi_worker.check_cluster(config)
    elif not isinstance(strategy, _OF_ONE_MACHINE):
        raise ValueError(
            f"RunConfig.train_distribute is not supported for {strategy!r}. Give a "
            "tf.distribute.MirroredStrategy, for the devices of one machine, or a "
            "MultiWorkerMirroredStrategy, for several machines; or describe a cluster with parameter servers "
            "in TF_CONFIG, without a strategy."
        )
    elif config.cluster_spec:
        raise ValueError(
            f"RunConfig.train_distribute is for one machine, but TF_CONFIG describes a cluster. Given: "
            f"{strategy!r}. Leave one of them out, or give a tf.distribute.MultiWorkerMirroredStrategy."
        )


def _for_evaluation(strategy: Any) -> Any:
    """Return the strategy of an evaluation, which is in one process always: on the devices it has there."""
    if spans_workers(strategy):
        devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
        return tf.distribute.MirroredStrategy([f"/{d.device_type}:{d.device_index}" for d in devices])
    if strategy is not None and not isinstance(strategy, _OF_ONE_MACHINE):
        raise ValueError(
            f"RunConfig.eval_distribute is not supported for {strategy!r}. Give a "
            "tf.distribute.MirroredStrategy: one process evaluates, on its devices."
        )
    return strategy


def _cpus(strategy: Any) -> int:
    """Return how many CPUs, virtual ones, a strategy works on."""
    if strategy is None:
        return 0
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    return sum(device.device_type == "CPU" for device in devices)


def training_inputs(config: RunConfig, input_fn: Callable[..., Any], optional: Mapping[str, Any]) -> Inputs:
    """Call `input_fn` in the default graph and return its tensors, each with one value a replica.

    Every replica gets the batches in turn: of n replicas, n batches of the Dataset are one step.

    Args:
        config: its strategy is the one whose scope this is; without: as `build_inputs` does.
        input_fn: returns a Dataset.
        optional: arguments that it gets if it names them, and `input_context`.

    Raises:
        ValueError: it returns no Dataset.
    """
    strategy = config.train_distribute
    if strategy is None:
        return build_inputs(input_fn, optional)
    if multi_worker.is_shared(config):
        return multi_worker.shared_inputs(config, input_fn, optional)

    def dataset_fn(context: Any) -> Any:
        return columnar(called_dataset(input_fn, {**optional, "input_context": context}, "train_distribute"))

    with host_fed_constants(tf.compat.v1.get_default_graph()) as arrays, warnings.catch_warnings():
        # TensorFlow's own code reads the options of a Dataset in graph mode, of which it warns.
        warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
        iterator = strategy.extended._make_input_fn_iterator(dataset_fn)
        features, labels = split(iterator.get_next())
    return Inputs(features, labels, tf.group(iterator.initializer), endless=False, arrays=arrays)


def training_spec(
    config: RunConfig, build: Callable[[Any, Any], EstimatorSpec], inputs: Inputs
) -> EstimatorSpec:
    """Build the model once for each replica and return one spec that trains them all.

    Its loss is the mean of the replicas' losses. Hooks and scaffold are those of the first replica.

    Args:
        config: its strategy is the one whose scope this is; without: the model is built once.
        build: makes the EstimatorSpec of features and labels.
        inputs: as `training_inputs` made them.
    """
    strategy = config.train_distribute
    if strategy is None:
        return build(inputs.features, inputs.labels)
    specs: list[EstimatorSpec] = []

    @tf.autograph.experimental.do_not_convert
    def replica(features: Any, labels: Any) -> tuple[Any, Any]:
        # Replicas are built in turns, the first always before the others: its spec is the first here.
        specs.append(build(features, labels))
        return specs[-1].loss, specs[-1].train_op

    step = tf.compat.v1.train.get_global_step()
    # Hooks read the step by this collection; a mirrored variable is read from its first copy.
    read = strategy.extended.read_var(step)
    tf.compat.v1.add_to_collection(training_util.GLOBAL_STEP_READ_KEY, read)
    # Optimizers of tf.compat.v1.train then divide a mean by the number of replicas, as heads here do.
    scaled = strategy._scale_loss_for_estimator_enabled()
    with scaled, keras_losses_as_on_one_device(), multi_worker.in_step(config):
        losses, train_ops = strategy.extended.call_for_each_replica(replica, (inputs.features, inputs.labels))
        leave_out_copies()
        loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
        train_op = tf.group(*strategy.experimental_local_results(train_ops))
        hooks = specs[0].training_hooks
        if multi_worker.is_shared(config):
            train_op, more = multi_worker.with_averages(config, train_op)
            hooks = [*hooks, *more]
    loss = tf.identity(loss, name="mean_loss")
    return specs[0]._replace(loss=loss, train_op=train_op, training_hooks=hooks)
