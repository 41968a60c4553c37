"""Recurrent cells over whole sequences, with Keras' formulas and variables.

References:
    Elman, Finding Structure in Time, 1990 (simple_rnn). Hochreiter and Schmidhuber, Long Short-Term Memory,
    1997 (lstm). Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, 2014 (gru, with the
    reset gate applied after the product, as in cuDNN). Source: Keras' SimpleRNNCell, LSTMCell and GRUCell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

States = tuple[tf.Tensor, ...]


class Cell(NamedTuple):
    """A kind of cell.

    Fields:
        gates: how many times the size of the output its kernel is wide.
        states: how many states it has; the first is the output.
        biases: how many biases: one, or one for the input and one for the states.
        step: from (input times kernel, states, recurrent kernel, recurrent bias) to the next states.
    """

    gates: int
    states: int
    biases: int
    step: Callable[[tf.Tensor, States, Any, Any], States]


def _simple(inputs: tf.Tensor, states: States, kernel: Any, _: Any) -> States:
    return (tf.tanh(inputs + tf.matmul(states[0], kernel)),)


def _lstm(inputs: tf.Tensor, states: States, kernel: Any, _: Any) -> States:
    output, memory = states
    enter, keep, new, leave = tf.split(inputs + tf.matmul(output, kernel), 4, axis=1)
    memory = tf.sigmoid(keep) * memory + tf.sigmoid(enter) * tf.tanh(new)
    return tf.sigmoid(leave) * tf.tanh(memory), memory


def _gru(inputs: tf.Tensor, states: States, kernel: Any, bias: Any) -> States:
    [output] = states
    recurrent = tf.split(tf.matmul(output, kernel) + bias, 3, axis=1)
    update, reset, new = tf.split(inputs, 3, axis=1)
    update, reset = tf.sigmoid(update + recurrent[0]), tf.sigmoid(reset + recurrent[1])
    return (update * output + (1.0 - update) * tf.tanh(new + reset * recurrent[2]),)


CELLS: Mapping[str, Cell] = {
    "simple_rnn": Cell(1, 1, 1, _simple),
    "lstm": Cell(4, 2, 1, _lstm),
    "gru": Cell(3, 1, 2, _gru),
}


def run_cell(kind: str, units: int, inputs: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
    """Run a cell over sequences; variables `kernel`, `recurrent_kernel` and `bias` in the current scope.

    A step that the mask leaves out changes nothing: its output is that of the step before.

    Args:
        kind: one of `CELLS`.
        units: size of the output.
        inputs: float32 `[batch, steps, size]`.
        mask: bool `[batch, steps]`.

    Returns:
        float32 `[batch, steps, units]`, and the variables.
    """
    cell = CELLS[kind]
    width = cell.gates * units
    kernel = _variable("kernel", [inputs.shape[-1], width], tf.compat.v1.glorot_uniform_initializer())
    recurrent = _variable("recurrent_kernel", [units, width], tf.compat.v1.orthogonal_initializer())
    shape = [width] if cell.biases == 1 else [cell.biases, width]
    bias = _variable("bias", shape, _bias_initializer(kind, units))
    first, second = (bias, None) if cell.biases == 1 else (bias[0], bias[1])
    products = tf.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), kernel) + first
    steps = tf.reshape(products, tf.concat([tf.shape(inputs)[:2], [width]], axis=0))

    def step(before: States, now: tuple[tf.Tensor, tf.Tensor]) -> States:
        product, counts = now
        after = cell.step(product, before, recurrent, second)
        return tuple(tf.where(counts, new, old) for new, old in zip(after, before, strict=True))

    start = tuple(tf.zeros([tf.shape(inputs)[0], units]) for _ in range(cell.states))
    by_time = (tf.transpose(steps, [1, 0, 2]), tf.expand_dims(tf.transpose(mask), -1))
    outputs = tf.scan(step, by_time, initializer=start)[0]
    result = tf.transpose(outputs, [1, 0, 2])
    return tf.ensure_shape(result, [None, None, units]), [kernel, recurrent, bias]


def _bias_initializer(kind: str, units: int) -> Any:
    if kind != "lstm":
        return tf.compat.v1.zeros_initializer()

    def remember(shape: Any, dtype: Any = None, partition_info: Any = None) -> tf.Tensor:
        """At first the gate that keeps the memory is open (Jozefowicz et al., ICML 2015)."""
        return tf.concat([tf.zeros([units]), tf.ones([units]), tf.zeros([2 * units])], axis=0)

    return remember


def _variable(name: str, shape: Any, initializer: Any) -> Any:
    return tf.compat.v1.get_variable(name, shape, initializer=initializer, use_resource=True)
