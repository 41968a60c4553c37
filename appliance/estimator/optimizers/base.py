"""What all graph optimizers share: hyper-parameters and slots as variables, gradients, the global step."""

from __future__ import annotations

import abc
import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

import tensorflow as tf

_SMALL = 4096
_scope: ContextVar[str] = ContextVar("training_scope", default="training/")


@contextlib.contextmanager
def training_scope(name: str) -> Iterator[None]:
    """Let the variables of optimizers that train inside be named `<name>/...` in place of `training/...`."""
    token = _scope.set(f"{name}/")
    try:
        yield
    finally:
        _scope.reset(token)


def current_training_scope() -> str:
    """Return the name scope that optimizers put their variables in, with a slash at its end."""
    return _scope.get()


class GraphOptimizer(abc.ABC):
    """An optimizer that adds its update to the current graph, in the style of Keras 2.

    Variables are named as tf.estimator's V2 classes name them: `training/<name>/<hyper-parameter>` (scalars,
    restored from a checkpoint like any variable), `training/<name>/<variable>/<slot>`, and
    `training/<name>/iter` unless `iterations` was set to another step counter.

    Args:
        learning_rate: a number, a Keras learning rate schedule, or a callable without arguments.
        name: the part of the variables' names that tells optimizers apart.
        decay: divides the learning rate by `1 + decay * iterations`.
        clipnorm, clipvalue, global_clipnorm: limits on each gradient's norm, on each element, and on the norm
            of all gradients together; at most one of them.

    Source: `tf.keras.optimizers.legacy.Optimizer` (Keras 2).
    """

    def __init__(
        self,
        learning_rate: Any,
        name: str,
        *,
        decay: float = 0.0,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        if sum(limit is not None for limit in (clipnorm, clipvalue, global_clipnorm)) > 1:
            raise ValueError(
                "At most one of clipnorm, clipvalue and global_clipnorm can be set; got "
                f"clipnorm={clipnorm}, clipvalue={clipvalue}, global_clipnorm={global_clipnorm}."
            )
        self.name = name
        self.clipnorm, self.clipvalue, self.global_clipnorm = clipnorm, clipvalue, global_clipnorm
        self._hypers: dict[str, Any] = {"learning_rate": learning_rate, "decay": decay}
        self._iterations: Any = None

    @property
    def iterations(self) -> Any:
        """The step counter, an int64 variable; None until it is set or the first update is built."""
        return self._iterations

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        if self._iterations is not None:
            raise RuntimeError(
                f"The iterations of optimizer {self.name!r} are already {self._iterations.name!r} and cannot "
                f"become {variable.name!r}."
            )
        self._iterations = variable

    def clone(self) -> GraphOptimizer:
        """Return an optimizer with the same settings that belongs to no graph yet."""
        twin = copy.copy(self)
        twin._hypers = dict(self._hypers)
        twin._iterations = None
        return twin

    def get_updates(self, loss: tf.Tensor, params: Sequence[Any]) -> list[Any]:
        """Return, in a list, the operation that moves `params` against the gradient of `loss` and counts the
        step.

        Raises:
            ValueError: there are no variables, or `loss` does not depend on one of them.
        """
        return [self.apply_gradients(gradients(loss, params))]

    @abc.abstractmethod
    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> tf.Operation:
        """Return the operation that applies the gradients, then adds one to `iterations`."""


class UpdateRule(GraphOptimizer):
    """An optimizer that moves each variable by itself, from its gradient and its slots."""

    slots: Mapping[str, str] = MappingProxyType({})
    """Slot name to the attribute that holds its initial value ('' for zero)."""

    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> tf.Operation:
        """See `GraphOptimizer`. In a replica of a distribution strategy, the gradients of all replicas are
        summed first."""
        pairs = self._clip(grads_and_vars)
        replica = tf.distribute.get_replica_context()
        # What merge_call calls runs in another thread, which does not see this one's scope.
        outer = current_training_scope()
        if replica is None:
            return self._apply(tf.distribute.get_strategy(), pairs, outer)
        if replica.num_replicas_in_sync == 1:
            return self._apply(replica.strategy, pairs, outer)
        return replica.merge_call(self._apply_summed, args=(pairs,), kwargs={"outer": outer})

    def _apply_summed(self, strategy: Any, pairs: Sequence[tuple[Any, Any]], outer: Any) -> tf.Operation:
        # The strategy gathers the strings of all replicas, which are the same.
        outer = strategy.experimental_local_results(outer)[0]
        summed = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        variables = [variable for _, variable in pairs]
        return self._apply(strategy, list(zip(summed, variables, strict=True)), outer)

    def _apply(self, strategy: Any, pairs: Sequence[tuple[Any, Any]], outer: str) -> tf.Operation:
        # A second optimizer of the same name gets `_1` behind it, as in tf.estimator.
        with tf.name_scope(outer), tf.name_scope(self.name) as scope:
            hypers = self._hyper_values(scope)
            prepared: dict[tf.DType, dict[str, tf.Tensor]] = {}
            updates = []
            for gradient, variable in pairs:
                dtype = variable.dtype.base_dtype
                if dtype not in prepared:
                    prepared[dtype] = self.prepare({name: tf.cast(v, dtype) for name, v in hypers.items()})
                slots = self._make_slots(strategy, scope, variable)
                if strategy.num_replicas_in_sync == 1:
                    updates.append(self._update(variable, gradient, slots, prepared[dtype]))
                else:
                    arguments = (gradient, slots, prepared[dtype])
                    updates.append(strategy.extended.update(variable, self._update, args=arguments))
            with tf.control_dependencies([tf.group(*updates)]):
                return self._iterations.assign_add(1, read_value=False, name="count_step")

    def _update(
        self, variable: Any, gradient: Any, slots: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> Any:
        apply = self.apply_sparse if isinstance(gradient, tf.IndexedSlices) else self.apply_dense
        return constrained(apply(gradient, variable, slots, shared), variable)

    def prepare(self, hypers: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the tensors that the updates of all variables share, from the hyper-parameters."""
        return hypers

    @abc.abstractmethod
    def apply_dense(
        self, gradient: tf.Tensor, variable: Any, slots: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> Any:
        """Return the operation that updates one variable."""

    @abc.abstractmethod
    def apply_sparse(
        self, gradient: tf.IndexedSlices, variable: Any, slots: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> Any:
        """Return the operation that updates some rows of one variable; `gradient` may repeat rows."""

    def _hyper_values(self, scope: str) -> dict[str, tf.Tensor]:
        values = {}
        for name, value in sorted(self._hypers.items()):
            if not callable(value):
                values[name] = _variable(scope + name, partial(tf.constant, value, tf.float32))
        if self._iterations is None:
            self._iterations = _variable(scope + "iter", lambda: tf.constant(0, tf.int64))
        values = {name: variable.read_value() for name, variable in values.items()}
        step = tf.cast(self._iterations.read_value(), tf.float32)
        rate = self._hypers["learning_rate"]
        if callable(rate):
            values["learning_rate"] = tf.cast(rate(step) if _is_schedule(rate) else rate(), tf.float32)
        if self._hypers["decay"]:
            values["learning_rate"] /= 1.0 + values["decay"] * step
        values["step"] = step
        if hasattr(self, "epsilon"):
            values["epsilon"] = tf.constant(self.epsilon, tf.float32)
        return values

    def _make_slots(self, strategy: Any, scope: str, variable: Any) -> dict[str, Any]:
        slots = {}
        with strategy.extended.colocate_vars_with(variable):
            for slot, attribute in self.slots.items():
                value = float(getattr(self, attribute)) if attribute else 0.0
                initial = partial(_filled, variable.shape, value, variable.dtype.base_dtype)
                slots[slot] = _variable(f"{scope}{variable.op.name}/{slot}", initial)
        return slots

    def _clip(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        grads, variables = [pair[0] for pair in grads_and_vars], [pair[1] for pair in grads_and_vars]
        if self.clipvalue is not None:
            limit = self.clipvalue
            grads = [_map_values(g, lambda v: tf.clip_by_value(v, -limit, limit)) for g in grads]
        elif self.clipnorm is not None:
            grads = [_map_values(g, lambda v: tf.clip_by_norm(v, self.clipnorm)) for g in grads]
        elif self.global_clipnorm is not None:
            grads, _ = tf.clip_by_global_norm(grads, self.global_clipnorm)
        return list(zip(grads, variables, strict=True))


def gradients(loss: tf.Tensor, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs (gradient of `loss`, variable).

    Raises:
        ValueError: there are no variables, or `loss` does not depend on one of them.
    """
    variables = list(variables)
    if not variables:
        raise ValueError("There are no variables to optimize; give the trainable variables of the model.")
    with tf.name_scope("gradients"):
        pairs = list(zip(tf.gradients(loss, variables), variables, strict=True))
    without = [variable.name for gradient, variable in pairs if gradient is None]
    if without:
        raise ValueError(
            f"The loss does not depend on the variables {without}, so they have no gradient. Leave them out "
            "of the trainable variables, or check that the operations between them and the loss can be "
            "differentiated."
        )
    return pairs


def constrained(update: Any, variable: Any) -> Any:
    """Return the operation that, after `update`, projects the variable by its constraint, if it has one."""
    if not variable.constraint:
        return update
    with tf.control_dependencies([update]):
        return variable.assign(variable.constraint(variable.read_value()), read_value=False)


def sum_duplicates(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (values, rows) of a sparse gradient with repeated rows summed, so that each occurs once."""
    rows, position = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows)), rows


def _filled(shape: tf.TensorShape, value: float, dtype: tf.DType) -> tf.Tensor:
    # A constant is one operation to build instead of three, but is kept in memory as long as the session.
    if shape.num_elements() <= _SMALL:
        return tf.constant(value, dtype, shape)
    return tf.fill(shape, tf.constant(value, dtype))


def _variable(name: str, initial: Callable[[], tf.Tensor]) -> Any:
    """Create an untrained variable with exactly this name."""
    with tf.name_scope(""), tf.init_scope():
        # A v1 variable keeps the copies of a MirroredStrategy out of the checkpoint.
        return tf.compat.v1.Variable(initial, trainable=False, name=name, use_resource=True)


def _is_schedule(rate: Any) -> bool:
    # Only a program that has imported Keras can hold a schedule; importing it here would slow every start.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def _map_values(gradient: Any, change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        # Rows are summed first: the limit is on the gradient, not on its pieces.
        values, rows = sum_duplicates(gradient)
        return tf.IndexedSlices(change(values), rows, gradient.dense_shape)
    return change(gradient)
