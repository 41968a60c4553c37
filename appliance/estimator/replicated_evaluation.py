"""Evaluation on several devices of this machine: the same numbers as on one device, bit for bit.

Each device has a copy of the model's variables; the variables of the metrics are there once. The replicas
take the batches in turn and compute at the same time, then add to the metrics one after the other, in the
order of the data. So nothing has to be known of a metric to get it right: it sees what it sees on one device.
Where the data ends in the middle of a round, the replicas without a batch do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from appliance.estimator.columnar import columnar
from appliance.estimator.distributed_variables import leave_out_copies, one_copy_of_metrics
from appliance.estimator.evaluation import metrics_of
from appliance.estimator.input_graph import (
    Inputs,
    build_inputs,
    called_dataset,
    host_fed_constants,
    prefetched,
    split,
)
from appliance.estimator.keras_losses import keras_losses_as_on_one_device
from appliance.estimator.model_fn import EstimatorSpec


class Turn(NamedTuple):
    """The batch of one replica: `taken` is the operation that has it, dead when there is none."""

    features: Any
    labels: Any
    taken: Any


def evaluation_inputs(strategy: Any, input_fn: Callable[..., Any], optional: Mapping[str, Any]) -> Inputs:
    """Call `input_fn` in the default graph and return its tensors.

    Args:
        strategy: whose scope this is; None: as `build_inputs` does.
        input_fn: returns a Dataset.
        optional: arguments that it gets if it names them.

    Returns:
        Inputs; with a strategy their features are a list with a `Turn` for each replica.

    Raises:
        ValueError: it returns no Dataset.
    """
    if strategy is None:
        return build_inputs(input_fn, optional)
    replicas = strategy.num_replicas_in_sync
    with tf.device("/cpu:0"), host_fed_constants(tf.compat.v1.get_default_graph()) as arrays:
        dataset = columnar(called_dataset(input_fn, optional, "eval_distribute"))
        iterator = tf.compat.v1.data.make_initializable_iterator(prefetched(dataset, 2 * replicas))
        # The first raises OutOfRangeError at the end, which ends the evaluation; the others do not.
        turns = [_turn(iterator.get_next())]
        last = turns[0].taken
        for _ in range(1, replicas):
            with tf.control_dependencies([last]):
                batch = iterator.get_next_as_optional()
            last = tf.nest.flatten(batch, expand_composites=True)[0].op
            turns.append(_turn(_dead_if_empty(batch).get_value()))
    return Inputs(turns, None, iterator.initializer, endless=False, arrays=arrays)


def _turn(element: Any) -> Turn:
    taken = tf.nest.flatten(element, expand_composites=True)[0].op
    return Turn(*split(element), taken)


def _dead_if_empty(batch: Any) -> Any:
    """Return the Optional `batch`; when it is empty, no operation runs that depends on what is returned."""
    (variant,) = tf.nest.flatten(batch, expand_composites=True)
    switched = tf.raw_ops.Switch(data=variant, pred=batch.has_value())
    return tf.nest.pack_sequence_as(batch, [switched.output_true], expand_composites=True)


def evaluation_spec(
    strategy: Any, build: Callable[[Any, Any], EstimatorSpec], inputs: Inputs
) -> tuple[EstimatorSpec, dict[str, tuple[Any, Any]]]:
    """Build the model once for each replica.

    Args:
        strategy: whose scope this is; None: the model is built once.
        build: makes the EstimatorSpec of features and labels.
        inputs: as `evaluation_inputs` made them.

    Returns:
        the spec of the first replica, and the metrics, with the loss, of all of them together.
    """
    if strategy is None:
        spec = build(inputs.features, inputs.labels)
        return spec, metrics_of(spec)
    specs: list[EstimatorSpec] = []
    metrics: list[dict[str, tuple[Any, Any]]] = []
    turns = iter(inputs.features)

    @tf.autograph.experimental.do_not_convert
    def replica() -> None:
        # Replicas are started in turns, the first always before the others.
        turn = next(turns)
        spec = build(turn.features, turn.labels)
        specs.append(spec)
        metrics.append(metrics_of(spec))

    with keras_losses_as_on_one_device(), tf.variable_creator_scope(one_copy_of_metrics):
        strategy.extended.call_for_each_replica(replica)
    leave_out_copies()
    updates = [[update for _, update in each.values()] for each in metrics]
    _in_turn(updates, [turn.taken for turn in inputs.features])
    together = {
        name: (value, tf.group(*(each[name][1] for each in metrics)))
        for name, (value, _) in metrics[0].items()
    }
    return specs[0], together


def _in_turn(updates: Sequence[Any], taken: Sequence[Any]) -> None:
    """Let the updates of each replica touch the variables of the metrics after those of the one before.

    Args:
        updates: for each replica what updates its metrics: a structure of operations and tensors.
        taken: for each replica the operation that has its batch, without which nothing is updated.
    """
    variables = tf.compat.v1.local_variables()
    handles = {variable.handle.ref() for variable in variables if hasattr(variable, "handle")}
    seen: set[Any] = set()
    before: list[Any] = []  # One operation, once there is a replica before.
    for each, batch in zip(updates, taken, strict=True):
        needed = _needed([getattr(update, "op", update) for update in tf.nest.flatten(each)], seen)
        seen |= needed
        uses = [op for op in needed if any(tensor.ref() in handles for tensor in op.inputs)]
        for operation in uses:
            operation._add_control_inputs([batch, *before])
        with tf.control_dependencies([*before, *uses]):
            before = [tf.no_op()]


def _needed(operations: Iterable[Any], known: set[Any]) -> set[Any]:
    """Return the operations that run when `operations` do, without the known ones."""
    found: set[Any] = set()
    waiting = [operation for operation in operations if operation not in known]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            needed = {*(tensor.op for tensor in operation.inputs), *operation.control_inputs}
            waiting.extend(needed - known - found)
    return found
