"""The state of a Keras model, taken into a graph.

A Keras 3 model holds its weights eagerly. In a graph, its layers run under `keras.StatelessScope`: each of
the model's variables stands for one of the graph's, and what the layers assign is collected in place of being
done. So any model works as it is, subclassed ones too, and is not changed; nothing is cloned.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from appliance.estimator.eager_values import eagerly, graph_constants
from appliance.estimator.model_fn import ModeKeys

_AUTO_NAMED = frozenset({"seed_generator", "variable"})


class Names:
    """Names for the layers and variables of a model that are the same in every process.

    Keras numbers unnamed layers over the life of a process (`dense_7`), so that the same model has other
    names the next time. Here they are numbered within the model: the first is `dense`, the next `dense_1`.
    """

    def __init__(self, model: Any) -> None:
        import keras

        layers = model._flatten_layers(include_self=True)
        self._automatic = _AUTO_NAMED | {
            keras.src.utils.naming.to_snake_case(type(layer).__name__) for layer in layers
        }
        self._model_name = model.name
        self._given: dict[tuple[str, str], str] = {}
        self._count: dict[tuple[str, str], int] = {}
        for layer in model.layers:
            self.layer(layer.name)

    def layer(self, name: str, parent: str = "") -> str:
        """Return the name of the layer that Keras calls `name`, inside of `parent`."""
        if (parent, name) not in self._given:
            base = re.sub(r"_\d+$", "", name)
            new = name
            if base in self._automatic:
                number = self._count.get((parent, base), 0)
                self._count[parent, base] = number + 1
                new = f"{base}_{number}" if number else base
            self._given[parent, name] = new
        return self._given[parent, name]

    def variables(self, variables: Sequence[Any]) -> list[str]:
        """Return a name for each of the variables, no two the same."""
        names: list[str] = []
        for variable in variables:
            parent, parts = "", []
            path = variable.path.split("/")
            # Whether the model itself is in the path depends on when its layers were built.
            for part in path[1:] if path[0] == self._model_name and len(path) > 2 else path:
                parts.append(self.layer(part, parent))
                parent = f"{parent}{part}/"
            name = unique = "/".join(parts)
            number = 1
            while unique in names:
                unique = f"{name}_{number}"
                number += 1
            names.append(unique)
        return names


class GraphState:
    """The variables of a Keras model in the default graph.

    Args:
        model: a built model.
        names: names for the variables, as `Names.variables` returns them.
        initial: their values before training.
        mode: one of `ModeKeys`; metrics have variables to evaluate only.
    """

    def __init__(self, model: Any, names: Sequence[str], initial: Sequence[np.ndarray], mode: str) -> None:
        self._model = model
        self.trainable: list[Any] = []
        self._state: list[tuple[Any, Any]] = []
        self.feeds: dict[Any, np.ndarray] = {}
        """What the scaffold feeds when variables are initialised: the weights stay out of the graph."""
        trained = {id(variable) for variable in model.trainable_variables}
        for variable, name, value in zip(model_variables(model), names, initial, strict=True):
            twin = self._weight(name, value, id(variable) in trained, variable.constraint)
            self._state.append((variable, twin))
            if id(variable) in trained:
                self.trainable.append(twin)
        self._metrics: list[tuple[Any, Any]] = []
        metrics = metric_variables(model)
        for i, (variable, value) in enumerate(zip(metrics, values_of(metrics), strict=True)):
            # In the other modes, layers and losses may update metrics, but nobody asks for the results.
            twin = _metric_variable(i, variable.name, value) if mode == ModeKeys.EVAL else tf.constant(value)
            self._metrics.append((variable, twin))

    def _weight(self, name: str, value: np.ndarray, trainable: bool, constraint: Any) -> Any:
        first = tf.compat.v1.placeholder(value.dtype, value.shape, name=f"{name}/given")
        self.feeds[first] = value
        if trainable:
            project = None if constraint is None else self._projection(constraint)
            return tf.compat.v1.get_variable(
                name, dtype=first.dtype, initializer=first, use_resource=True, constraint=project
            )
        aggregation = tf.VariableAggregation
        return tf.compat.v1.get_variable(
            name,
            # Said, for the replicas after the first: they find the variable.
            dtype=first.dtype,
            initializer=first,
            trainable=False,
            use_resource=True,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation.MEAN if value.dtype.kind == "f" else aggregation.ONLY_FIRST_REPLICA,
        )

    def _projection(self, constraint: Any) -> Any:
        def project(value: Any) -> Any:
            with graph_constants(self._model):
                return constraint(value)

        return project

    @contextlib.contextmanager
    def scope(self) -> Iterator[Any]:
        """Let the layers and metrics use the graph's variables; yields the `keras.StatelessScope`."""
        import keras

        scope = keras.StatelessScope(collect_losses=True)
        # Set here, and not by the constructor, which would read every variable: a gather of some rows of an
        # embedding then takes all of them out first.
        scope.state_mapping.update({id(variable): twin for variable, twin in self._state + self._metrics})
        with graph_constants(self._model), scope:
            yield scope

    def updates(self, scope: Any, loss: Any) -> list[Any]:
        """Return the operations that do what the layers assigned in `scope`: moving averages, seeds."""
        return _assignments(scope, self._state, loss)

    def metric_updates(self, scope: Any, loss: Any) -> Any:
        """Return the operation that does what the metrics assigned in `scope`."""
        return tf.group(*_assignments(scope, self._metrics, loss))


def model_variables(model: Any) -> list[Any]:
    """Return the weights, moving averages and seeds of a model: all that a checkpoint holds of it."""
    metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in metrics]


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of a model's metrics, each once."""
    return list({id(variable): variable for variable in model.metrics_variables}.values())


def values_of(variables: Sequence[Any]) -> list[np.ndarray]:
    """Return copies of the eager values of Keras variables."""
    with eagerly():
        return [np.array(variable.numpy()) for variable in variables]


def build(model: Any, x: Any, y: Any, sample_weight: Any) -> None:
    """Create the variables that Keras makes at the first batch: of layers, metrics and losses.

    Args:
        model: a compiled model.
        x, y, sample_weight: tensors, or structures of them, of which shapes and dtypes are used; labels may
            be None, and the model's layers alone are then built.
    """
    import keras

    built = all(layer.built for layer in model._flatten_layers())
    compiled = [part for part in (model._compile_metrics, model._compile_loss) if part is not None]
    if built and (y is None or all(part.built for part in compiled)):
        return
    x, y, sample_weight = tf.nest.map_structure(_symbolic, (x, y, sample_weight))
    with eagerly():
        infer = keras.src.backend.compute_output_spec
        outputs = infer(model, x, training=False) if model._call_has_training_arg else infer(model, x)
        if y is None:
            return
        infer(model.compute_metrics, x, y, outputs, sample_weight=sample_weight)
        infer(model._compute_loss, x, y, outputs, sample_weight=sample_weight, training=False)


def _symbolic(tensor: Any) -> Any:
    import keras

    if tensor is None:
        return None
    return keras.KerasTensor(tuple(tensor.shape), tensor.dtype.name)


def _metric_variable(number: int, name: str, value: np.ndarray) -> Any:
    keys = tf.compat.v1.GraphKeys
    return tf.compat.v1.get_variable(
        f"metrics/{number}/{name}",
        initializer=tf.constant(value),
        trainable=False,
        use_resource=True,
        collections=[keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES],
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def _assignments(scope: Any, pairs: Sequence[tuple[Any, Any]], loss: Any) -> list[Any]:
    operations = []
    # A count of examples of a known batch size needs no data: without the dependency on the loss it would
    # go up once more when the data ends.
    with tf.control_dependencies([loss]):
        for variable, twin in pairs:
            value = scope.get_current_value(variable)
            if value is not twin:
                operations.append(twin.assign(tf.cast(value, twin.dtype), read_value=False))
    return operations
