"""Which of TensorFlow's executors runs a graph: small ones are faster on a single thread.

The default executor hands ready operations to a pool of threads. In a graph of a few hundred operations,
each of a few microseconds, the handing over takes longer than the work: a step of a small DNN at batch 64
is about twice as fast on one thread (kernels still use all cores inside). Large graphs gain from the pool.

The executor made for one thread cannot trace. Where a hook may ask for traces, it is the default one that
keeps to the thread of its caller, without the pool: nearly as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

LARGEST = 512
"""Steps of more operations than this keep the default executor: wide & deep on 17 columns has 2,000."""

_SINGLE = "SINGLE_THREADED_EXECUTOR"
_CALLERS_THREAD = -1
_NOT_SUPPORTED = frozenset(
    f"{ref}{name}" for name in ("Switch", "Merge", "Enter", "Exit", "NextIteration") for ref in ("", "Ref")
)
"""The control flow of old: the single-threaded executor refuses it. `If` and `While` it runs."""
_NOT_SMALL = frozenset(
    [
        "While",
        "StatelessWhile",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "RemoteCall",
        "SymbolicGradient",
    ]
)
"""What one operation of these does may be any amount of work."""
_CPU = frozenset(["", "/cpu:0", "/device:CPU:0", "/device:CPU:*"])


class FastSessionCreator(tf.compat.v1.train.SessionCreator):
    """Opens a session with the executor that suits the graph.

    Args:
        creator: makes the session creator from its argument `config`.
        config: session options in which nobody has chosen the executor.
        fetches: what the session is going to run at each step.
        traceable: whether traces may be asked for.
    """

    def __init__(
        self, creator: Callable[..., Any], config: Any, fetches: Sequence[Any], traceable: bool
    ) -> None:
        self._creator = creator
        self._config = config
        self._fetches = fetches
        self._traceable = traceable

    def create_session(self) -> Any:
        """Open the session. The hooks have added to the graph by now what they need."""
        config = self._config
        if suits_single_thread(self._fetches):
            config = tf.compat.v1.ConfigProto.FromString(config.SerializeToString())
            if self._traceable:
                config.inter_op_parallelism_threads = _CALLERS_THREAD
            else:
                config.experimental.executor_type = _SINGLE
        return self._creator(config=config).create_session()


def suits_single_thread(fetches: Sequence[Any]) -> bool:
    """Return whether running `fetches` is better done on one thread, and all of their graph can be."""
    if tf.config.list_physical_devices("GPU"):
        return False
    operations = [getattr(fetch, "op", fetch) for fetch in fetches]
    return _is_small(operations) and all(_is_supported(op) for op in operations[0].graph.get_operations())


def _is_small(operations: Sequence[Any]) -> bool:
    seen = set(operations)
    waiting = list(operations)
    while waiting and len(seen) <= LARGEST:
        operation = waiting.pop()
        needed = {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)
        waiting.extend(needed - seen)
        seen |= needed
    return len(seen) <= LARGEST


def _is_supported(operation: Any) -> bool:
    return (
        operation.type not in _NOT_SUPPORTED | _NOT_SMALL
        and not operation.type.startswith("Collective")
        and operation.device in _CPU
        and not any(tensor.dtype._is_ref_dtype for tensor in operation.outputs)
    )
