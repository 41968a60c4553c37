"""Keras 2's Adagrad, Adam, Ftrl, RMSprop and SGD, on TensorFlow's fused training operations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from appliance.estimator.optimizers.base import GraphOptimizer, UpdateRule, sum_duplicates

Tensors = Mapping[str, Any]


class Adagrad(UpdateRule):
    """Adagrad: `accumulator += g^2; variable -= learning_rate * g / (sqrt(accumulator) + epsilon)`.

    References:
        Duchi et al., Adaptive Subgradient Methods, JMLR 12, 2011. Source:
        `tf.keras.optimizers.legacy.Adagrad`.
    """

    slots: Mapping[str, str] = MappingProxyType({"accumulator": "initial_accumulator_value"})

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "Adagrad",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        _not_negative(self, initial_accumulator_value=initial_accumulator_value)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def apply_dense(self, gradient: tf.Tensor, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        return tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle,
            accum=slots["accumulator"].handle,
            lr=shared["learning_rate"],
            epsilon=shared["epsilon"],
            grad=gradient,
        )

    def apply_sparse(self, gradient: tf.IndexedSlices, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        values, rows = sum_duplicates(gradient)
        return tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=variable.handle,
            accum=slots["accumulator"].handle,
            lr=shared["learning_rate"],
            epsilon=shared["epsilon"],
            grad=values,
            indices=rows,
        )


class Adam(UpdateRule):
    """Adam, with the epsilon of section 2.1's last formula ("epsilon hat"). All rows decay, also where the
    gradient is sparse.

    References:
        Kingma and Ba, Adam, ICLR 2015; Reddi et al., ICLR 2018 (amsgrad). Source:
        `tf.keras.optimizers.legacy.Adam`.
    """

    slots: Mapping[str, str] = MappingProxyType({"m": "", "v": ""})

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self._hypers.update(beta_1=beta_1, beta_2=beta_2)
        self.epsilon = epsilon
        self.amsgrad = amsgrad
        if amsgrad:
            self.slots = {**self.slots, "vhat": ""}

    def prepare(self, hypers: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Add the powers of the two betas."""
        step = hypers["step"] + 1.0
        powers = {f"{beta}_power": tf.pow(hypers[beta], step) for beta in ("beta_1", "beta_2")}
        return {**hypers, **powers}

    def apply_dense(self, gradient: tf.Tensor, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        arguments = {
            "var": variable.handle,
            "m": slots["m"].handle,
            "v": slots["v"].handle,
            "beta1_power": shared["beta_1_power"],
            "beta2_power": shared["beta_2_power"],
            "lr": shared["learning_rate"],
            "beta1": shared["beta_1"],
            "beta2": shared["beta_2"],
            "epsilon": shared["epsilon"],
            "grad": gradient,
        }
        if self.amsgrad:
            return tf.raw_ops.ResourceApplyAdamWithAmsgrad(vhat=slots["vhat"].handle, **arguments)
        return tf.raw_ops.ResourceApplyAdam(**arguments)

    def apply_sparse(self, gradient: tf.IndexedSlices, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`. Every row moves at every step, so one dense pass is cheapest."""
        dense = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
        return self.apply_dense(dense, variable, slots, shared)


class Ftrl(UpdateRule):
    """Follow the regularised leader, proximal, with `beta` folded into the L2 strength.

    References:
        McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013. Source:
        `tf.keras.optimizers.legacy.Ftrl`.
    """

    slots: Mapping[str, str] = MappingProxyType({"accumulator": "initial_accumulator_value", "linear": ""})

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        _not_negative(
            self,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
        )
        if learning_rate_power > 0:
            raise ValueError(
                f"Ftrl: learning_rate_power must be zero or negative; got {learning_rate_power}."
            )
        self._hypers.update(
            learning_rate_power=learning_rate_power,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            beta=beta,
        )
        self.initial_accumulator_value = initial_accumulator_value
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength

    def prepare(self, hypers: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Fold beta into the L2 strength, which the fused operation takes."""
        l2 = hypers["l2_regularization_strength"] + hypers["beta"] / (2.0 * hypers["learning_rate"])
        return {**hypers, "l2": l2}

    def _arguments(self, variable: Any, slots: Tensors, shared: Tensors) -> dict[str, Any]:
        arguments = {
            "var": variable.handle,
            "accum": slots["accumulator"].handle,
            "linear": slots["linear"].handle,
            "lr": shared["learning_rate"],
            "l1": shared["l1_regularization_strength"],
            "l2": shared["l2"],
            "lr_power": shared["learning_rate_power"],
        }
        if self.l2_shrinkage_regularization_strength > 0:
            arguments["l2_shrinkage"] = self.l2_shrinkage_regularization_strength
        return arguments

    def apply_dense(self, gradient: tf.Tensor, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        arguments = self._arguments(variable, slots, shared)
        if "l2_shrinkage" in arguments:
            return tf.raw_ops.ResourceApplyFtrlV2(grad=gradient, **arguments)
        return tf.raw_ops.ResourceApplyFtrl(grad=gradient, **arguments)

    def apply_sparse(self, gradient: tf.IndexedSlices, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        arguments = self._arguments(variable, slots, shared)
        values, rows = sum_duplicates(gradient)
        if "l2_shrinkage" in arguments:
            return tf.raw_ops.ResourceSparseApplyFtrlV2(grad=values, indices=rows, **arguments)
        return tf.raw_ops.ResourceSparseApplyFtrl(grad=values, indices=rows, **arguments)


class RMSprop(UpdateRule):
    """RMSprop, plain, with momentum, or centered. With a sparse gradient all rows of `rms` decay, but only
    its rows move.

    References:
        Tieleman and Hinton, Lecture 6.5, COURSERA, 2012. Source: `tf.keras.optimizers.legacy.RMSprop`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        _between_zero_and_one(self, momentum=momentum)
        self._hypers.update(rho=rho, momentum=momentum)
        self.momentum = momentum
        self.epsilon = epsilon
        self.centered = centered
        self.slots = {"rms": "", **({"momentum": ""} if momentum else {}), **({"mg": ""} if centered else {})}

    def _arguments(self, variable: Any, slots: Tensors, shared: Tensors) -> dict[str, Any]:
        return {
            "var": variable.handle,
            "ms": slots["rms"].handle,
            "mom": slots["momentum"].handle,
            "lr": shared["learning_rate"],
            "rho": shared["rho"],
            "momentum": shared["momentum"],
            "epsilon": shared["epsilon"],
            **({"mg": slots["mg"].handle} if self.centered else {}),
        }

    def apply_dense(self, gradient: tf.Tensor, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        if self.momentum:
            arguments = self._arguments(variable, slots, shared)
            if self.centered:
                return tf.raw_ops.ResourceApplyCenteredRMSProp(grad=gradient, **arguments)
            return tf.raw_ops.ResourceApplyRMSProp(grad=gradient, **arguments)
        rho = shared["rho"]
        # The fused operation has epsilon under the root; without momentum Keras 2 has it outside.
        rms = slots["rms"]
        denominator = tf.identity(rms.assign(rho * rms + (1.0 - rho) * tf.square(gradient)))
        if self.centered:
            mg = slots["mg"]
            denominator -= tf.square(mg.assign(rho * mg + (1.0 - rho) * gradient))
        step = shared["learning_rate"] * gradient / (tf.sqrt(denominator) + shared["epsilon"])
        return variable.assign_sub(step, read_value=False)

    def apply_sparse(self, gradient: tf.IndexedSlices, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        values, rows = sum_duplicates(gradient)
        if self.momentum:
            arguments = self._arguments(variable, slots, shared)
            if self.centered:
                return tf.raw_ops.ResourceSparseApplyCenteredRMSProp(grad=values, indices=rows, **arguments)
            return tf.raw_ops.ResourceSparseApplyRMSProp(grad=values, indices=rows, **arguments)
        rho = shared["rho"]
        denominator = _decay_and_add(slots["rms"], rho, (1.0 - rho) * tf.square(values), rows)
        if self.centered:
            denominator -= tf.square(_decay_and_add(slots["mg"], rho, (1.0 - rho) * values, rows))
        step = -shared["learning_rate"] * values / (tf.sqrt(denominator) + shared["epsilon"])
        return tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=rows, updates=step)


class SGD(UpdateRule):
    """Gradient descent, with momentum or Nesterov's momentum on request.

    References:
        Sutskever et al., On the importance of initialization and momentum, ICML 2013. Source:
        `tf.keras.optimizers.legacy.SGD`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        _between_zero_and_one(self, momentum=momentum)
        self._hypers.update(momentum=momentum)
        self.momentum = momentum
        self.nesterov = nesterov
        self.slots = {"momentum": ""} if momentum else {}

    def apply_dense(self, gradient: tf.Tensor, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        if not self.momentum:
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=shared["learning_rate"], delta=gradient
            )
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=slots["momentum"].handle,
            lr=shared["learning_rate"],
            grad=gradient,
            momentum=shared["momentum"],
            use_nesterov=self.nesterov,
        )

    def apply_sparse(self, gradient: tf.IndexedSlices, variable: Any, slots: Tensors, shared: Tensors) -> Any:
        """See `UpdateRule`."""
        if not self.momentum:
            return tf.raw_ops.ResourceScatterAdd(
                resource=variable.handle,
                indices=gradient.indices,
                updates=-gradient.values * shared["learning_rate"],
            )
        values, rows = sum_duplicates(gradient)
        return tf.raw_ops.ResourceSparseApplyKerasMomentum(
            var=variable.handle,
            accum=slots["momentum"].handle,
            lr=shared["learning_rate"],
            grad=values,
            indices=rows,
            momentum=shared["momentum"],
            use_nesterov=self.nesterov,
        )


def _decay_and_add(slot: Any, rho: tf.Tensor, values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Multiply the whole slot by `rho`, add `values` to some rows, and return those rows."""
    with tf.control_dependencies([slot.assign(slot * rho, read_value=False)]):
        added = tf.raw_ops.ResourceScatterAdd(resource=slot.handle, indices=rows, updates=values)
    with tf.control_dependencies([added]):
        return tf.gather(slot, rows)


def _not_negative(optimizer: GraphOptimizer, **settings: float) -> None:
    for name, value in settings.items():
        if value < 0:
            raise ValueError(f"{type(optimizer).__name__}: {name} must be zero or positive; got {value}.")


def _between_zero_and_one(optimizer: GraphOptimizer, **settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{type(optimizer).__name__}: {name} must be between 0 and 1; got {value}.")
