"""Training on several devices of this machine: one copy of the model on each, gradients summed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.training import training_util

from appliance.estimator.columnar import columnar
from appliance.estimator.input_graph import Inputs, build_inputs, called_dataset, host_fed_constants, split
from appliance.estimator.model_fn import EstimatorSpec
from appliance.estimator.run_config import RunConfig


def with_devices(config: RunConfig) -> RunConfig:
    """Return the config with sessions that have the devices of its strategies.

    Raises:
        ValueError: one is neither `tf.distribute.MirroredStrategy` nor `OneDeviceStrategy`, or is to train
            where there is a cluster.
    """
    if config.experimental_distribute is not None:
        raise ValueError(
            f"RunConfig.experimental_distribute is not supported. Given: {config.experimental_distribute}. "
            "Give the strategies as train_distribute and eval_distribute."
        )
    for field in ("train_distribute", "eval_distribute"):
        _check(field, getattr(config, field))
    if config.train_distribute is not None and config.cluster_spec:
        raise ValueError(
            f"RunConfig.train_distribute is for one machine, but TF_CONFIG describes a cluster. Given: "
            f"{config.train_distribute!r}. Leave one of them out."
        )
    virtual = max(_cpus(config.train_distribute), _cpus(config.eval_distribute))
    if virtual < 2:
        return config
    options = tf.compat.v1.ConfigProto.FromString(config.session_config.SerializeToString())
    if "CPU" not in options.device_count:
        options.device_count["CPU"] = virtual
    return config.replace(session_config=options)


def _check(field: str, strategy: Any) -> None:
    if strategy is not None and not isinstance(
        strategy, tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy
    ):
        raise ValueError(
            f"RunConfig.{field} is not supported for {strategy!r}. Give a tf.distribute.MirroredStrategy, "
            "for the devices of one machine; for several machines describe a cluster with parameter servers "
            "in TF_CONFIG."
        )


def _cpus(strategy: Any) -> int:
    """Return how many CPUs, virtual ones, a strategy works on."""
    if strategy is None:
        return 0
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    return sum(device.device_type == "CPU" for device in devices)


def training_inputs(strategy: Any, input_fn: Callable[..., Any], optional: Mapping[str, Any]) -> Inputs:
    """Call `input_fn` in the default graph and return its tensors, each with one value a replica.

    Every replica gets the batches in turn: of n replicas, n batches of the Dataset are one step.

    Args:
        strategy: whose scope this is; None: as `build_inputs` does.
        input_fn: returns a Dataset.
        optional: arguments that it gets if it names them, and `input_context`.

    Raises:
        ValueError: it returns no Dataset.
    """
    if strategy is None:
        return build_inputs(input_fn, optional)

    def dataset_fn(context: Any) -> Any:
        return columnar(called_dataset(input_fn, {**optional, "input_context": context}, "train_distribute"))

    with host_fed_constants(tf.compat.v1.get_default_graph()) as arrays, warnings.catch_warnings():
        # TensorFlow's own code reads the options of a Dataset in graph mode, of which it warns.
        warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
        iterator = strategy.extended._make_input_fn_iterator(dataset_fn)
        features, labels = split(iterator.get_next())
    return Inputs(features, labels, tf.group(iterator.initializer), endless=False, arrays=arrays)


def training_spec(strategy: Any, build: Callable[[Any, Any], EstimatorSpec], inputs: Inputs) -> EstimatorSpec:
    """Build the model once for each replica and return one spec that trains them all.

    Its loss is the mean of the replicas' losses. Hooks and scaffold are those of the first replica.

    Args:
        strategy: whose scope this is; None: the model is built once.
        build: makes the EstimatorSpec of features and labels.
        inputs: as `training_inputs` made them.
    """
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
    with strategy._scale_loss_for_estimator_enabled():
        losses, train_ops = strategy.extended.call_for_each_replica(replica, (inputs.features, inputs.labels))
    leave_out_copies()
    loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
    train_op = tf.group(*strategy.experimental_local_results(train_ops))
    return specs[0]._replace(loss=tf.identity(loss, name="mean_loss"), train_op=train_op)


def leave_out_copies() -> None:
    """Keep the copies of the variables of this graph out of the checkpoint: each is in it once, as a whole.

    TensorFlow does so itself, but not with a `tf.Variable`, as Keras layers make them.
    """
    saved = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    copies = {
        id(copy)
        for variable in saved
        if isinstance(variable, DistributedVariable)
        for copy in variable.values
    }
    saved[:] = [variable for variable in saved if id(variable) not in copies]
