"""How TensorFlow runs a graph: on which executor, and whether it rewrites the graph first.

The default executor hands ready operations to a pool of threads. In a graph of a few hundred operations,
each of a few microseconds, the handing over takes longer than the work: a step of a small DNN at batch 64
is about twice as fast on one thread (kernels still use all cores inside). Large graphs gain from the pool.

The executor made for one thread cannot trace. Where a hook may ask for traces, it is the default one that
keeps to the thread of its caller, without the pool: nearly as fast.

Before a session first runs something, Grappler rewrites what of the graph that needs. For wide & deep on 17
columns that takes half a second for each set of fetches, a third of all that there is to do before the first
step; and then the steps are no faster, as the session folds constants and joins equal operations in any
case (a transformer of three layers takes as long with it as without). It pays on GPUs, and where it can
inline functions, move work out of loops or join convolutions with what follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.run_config import RunConfig
from appliance.estimator.session_config import default_session_config

LARGEST = 512
"""Steps of more operations than this keep the default executor: wide & deep on 17 columns has 800."""

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
_NOT_PLAIN = _NOT_SUPPORTED | _NOT_SMALL
_CPU = frozenset(["", "/cpu:0", "/device:CPU:0", "/device:CPU:*"])


def fitting_opener(
    creator: Callable[..., Any],
    config: RunConfig,
    master: str,
    fetches: Sequence[Any] = (),
    *,
    traceable: bool = False,
) -> Any:
    """Return what opens a session with the options that fit the graph, or those that somebody has chosen.

    Args:
        creator: makes the session creator from its argument `config`.
        config: of the estimator.
        master: where the session is; empty for this process.
        fetches, traceable: see `FittingSessionCreator`.
    """
    options = config.session_config
    # What XLA compiles is switched to by control flow that needs the default executor.
    if master or config.jit_compile or options != default_session_config():
        return creator(config=options)
    return FittingSessionCreator(creator, options, fetches, traceable=traceable)


class FittingSessionCreator(tf.compat.v1.train.SessionCreator):
    """Opens a session with the options that fit the graph.

    Args:
        creator: makes the session creator from its argument `config`.
        config: session options in which nobody has chosen anything.
        fetches: what the session is going to run at each step of a training; none for anything else.
        traceable: whether traces may be asked for.
    """

    def __init__(
        self,
        creator: Callable[..., Any],
        config: Any,
        fetches: Sequence[Any] = (),
        *,
        traceable: bool = False,
    ) -> None:
        self._creator = creator
        self._config = config
        self._fetches = fetches
        self._traceable = traceable

    def create_session(self) -> Any:
        """Open the session. The hooks have added to the graph by now what they need."""
        graph = tf.compat.v1.get_default_graph()
        config = fitting(self._config, graph, self._fetches, traceable=self._traceable)
        return self._creator(config=config).create_session()


def fitting(config: Any, graph: Any, fetches: Sequence[Any] = (), *, traceable: bool = False) -> Any:
    """Return a copy of `config`, session options, with those that fit `graph`; see FittingSessionCreator."""
    config = tf.compat.v1.ConfigProto.FromString(config.SerializeToString())
    if not gains_from_rewriting(graph):
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    if fetches and suits_single_thread(fetches):
        if traceable:
            config.inter_op_parallelism_threads = _CALLERS_THREAD
        else:
            config.experimental.executor_type = _SINGLE
    return config


def gains_from_rewriting(graph: Any) -> bool:
    """Return whether Grappler may make the graph faster by more than it costs."""
    if tf.config.list_physical_devices("GPU"):
        return True
    return any(
        operation.type in _NOT_PLAIN or "Conv" in operation.type for operation in graph.get_operations()
    )


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
        operation.type not in _NOT_PLAIN
        and not operation.type.startswith("Collective")
        and operation.device in _CPU
        and not any(tensor.dtype._is_ref_dtype for tensor in operation.outputs)
    )
