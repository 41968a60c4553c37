"""Training on several devices of this machine: one copy of the model on each, gradients summed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.training import training_util

from appliance.estimator.arguments import call_with_known
from appliance.estimator.columnar import columnar
from appliance.estimator.input_graph import Inputs, build_inputs, host_fed_constants, split
from appliance.estimator.model_fn import EstimatorSpec
from appliance.estimator.run_config import RunConfig


def with_devices(config: RunConfig) -> RunConfig:
    """Return the config with sessions that have the devices of its strategy.

    Raises:
        ValueError: one is for evaluation, or is neither `tf.distribute.MirroredStrategy` nor
            `OneDeviceStrategy`, or there is a cluster.
    """
    for name in ("eval_distribute", "experimental_distribute"):
        if getattr(config, name) is not None:
            raise ValueError(
                f"RunConfig.{name} is not supported. Given: {getattr(config, name)}. Leave it out: evaluation"
                " runs on one device, with the same result; to train on several, set train_distribute."
            )
    strategy = config.train_distribute
    if strategy is None:
        return config
    if not isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy):
        raise ValueError(
            f"RunConfig.train_distribute is not supported for {strategy!r}. Give a "
            "tf.distribute.MirroredStrategy, for the devices of one machine; for several machines describe a "
            "cluster with parameter servers in TF_CONFIG."
        )
    if config.cluster_spec:
        raise ValueError(
            f"RunConfig.train_distribute is for one machine, but TF_CONFIG describes a cluster. Given: "
            f"{strategy!r}. Leave one of them out."
        )
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    virtual = sum(device.device_type == "CPU" for device in devices)
    options = tf.compat.v1.ConfigProto.FromString(config.session_config.SerializeToString())
    if virtual > 1 and "CPU" not in options.device_count:
        options.device_count["CPU"] = virtual
    return config.replace(session_config=options)


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
        dataset = call_with_known(input_fn, optional={**optional, "input_context": context})
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"With train_distribute an input_fn must return a tf.data.Dataset. Given: {dataset!r}."
            )
        return columnar(dataset)

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
    loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
    train_op = tf.group(*strategy.experimental_local_results(train_ops))
    return specs[0]._replace(loss=tf.identity(loss, name="mean_loss"), train_op=train_op)
