"""Datasets over arrays in memory, made to take whole batches from the columns.

`Dataset.from_tensor_slices(columns).shuffle(n).repeat().batch(b)` makes a tensor of every value of every
row and copies them together again: with 17 columns that takes several times as long as the training step it
feeds. What happens to the rows before they are batched does not look into them, so the same can be done to
row numbers; then one gather a column makes the batch. The batches are the same, in the same order for the
same seeds.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

ROW_WISE = frozenset(
    {
        "OptionsDataset",
        "RepeatDataset",
        "ShardDataset",
        "ShuffleAndRepeatDatasetV2",
        "ShuffleDataset",
        "ShuffleDatasetV2",
        "ShuffleDatasetV3",
        "SkipDataset",
        "TakeDataset",
    }
)
"""Operations that hand on elements as they are, whatever is in them."""
_BATCH = "BatchDatasetV2"
_AFTER = ROW_WISE | {_BATCH, "PrefetchDataset"}


def columnar(dataset: Any) -> Any:
    """Return a Dataset of the same batches that gathers them column by column, where that can be done.

    It can for slices of dense tensors that are shuffled, repeated, taken, skipped or sharded and then
    batched; any other Dataset is returned as it is. A graph must be being built.
    """
    chain = _chain(tf.data.experimental.to_variant(dataset).op)
    if chain is None:
        return dataset
    slices, before, batch, after = chain
    specs = tf.nest.flatten(_row_batches(batch))
    rows = _row_numbers(slices)
    for operation in [*before, batch]:
        rows = _again(operation, rows)
    columns = list(slices.inputs)

    def gather(numbers: Any) -> tuple[Any, ...]:
        taken = [tf.gather(column, numbers) for column in columns]
        for tensor, spec in zip(taken, specs, strict=True):
            tensor.set_shape(spec)
        return tuple(taken)

    batches = tf.data.experimental.from_variant(rows, tf.TensorSpec([None], tf.int64)).map(gather)
    variant = tf.data.experimental.to_variant(batches)
    for operation in after:
        variant = _again(operation, variant, as_it_was=True)
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _chain(operation: Any) -> tuple[Any, list[Any], Any, list[Any]] | None:
    """Return the slices, what comes before the first batch, that batch, and what comes after it; in order.

    None when there is anything else in the chain.
    """
    chain: list[Any] = []
    while operation.type in _AFTER:
        chain.append(operation)
        operation = operation.inputs[0].op
    chain.reverse()
    first = next((index for index, entry in enumerate(chain) if entry.type == _BATCH), None)
    if operation.type != "TensorSliceDataset" or first is None:
        return None
    before = chain[:first]
    if any(entry.type not in ROW_WISE for entry in before) or not operation.inputs:
        return None
    if any(
        column.dtype in (tf.variant, tf.resource) or column.shape.rank is None for column in operation.inputs
    ):
        return None
    return operation, before, chain[first], chain[first + 1 :]


def _row_batches(batch: Any) -> list[tf.TensorShape]:
    return [tf.TensorShape(shape) for shape in batch.get_attr("output_shapes")]


def _row_numbers(slices: Any) -> Any:
    count = slices.inputs[0].shape[0]
    if count is None:
        count = tf.shape(slices.inputs[0], out_type=tf.int64)[0]
    return tf.data.experimental.to_variant(tf.data.Dataset.range(count))


def _again(operation: Any, dataset: Any, as_it_was: bool = False) -> Any:
    """Return the output of the same operation on another dataset: of row numbers, or of the same elements."""
    attributes = {name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")}
    if not as_it_was:
        number = tf.compat.v1.AttrValue()
        number.list.type.append(tf.int64.as_datatype_enum)
        shape = tf.compat.v1.AttrValue()
        rank = 1 if operation.type == _BATCH else 0
        shape.list.shape.append(tf.TensorShape([None] * rank).as_proto())
        attributes |= {"output_types": number, "output_shapes": shape}
    graph = tf.compat.v1.get_default_graph()
    made = graph.create_op(
        operation.type,
        [dataset, *operation.inputs[1:]],
        [tf.variant],
        attrs=attributes,
        name=f"{operation.name.rsplit('/', 1)[-1]}_of_rows",
    )
    return made.outputs[0]
