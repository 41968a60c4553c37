"""The two kinds of labels: one class for each example, or any number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from scipy import special

from appliance.estimator.canned.model_fns import classification_head
from appliance.estimator.heads import Head, MultiLabelHead
from appliance.estimator.sklearn.trainer import WEIGHT

ClassWeight = Mapping[Any, float] | str | None


class Labels(Protocol):
    """What a classifier needs to know about its labels. Logits are float64 `[rows, units]`."""

    @property
    def classes(self) -> np.ndarray:
        """The labels, in the order of the probabilities."""

    @property
    def width(self) -> int:
        """How many targets an example has."""

    @property
    def exclusive(self) -> bool:
        """Whether each example has one class."""

    def head(self) -> Head:
        """Return the head that learns the targets."""

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """Return labels as the head takes them, int64 `[rows, width]`."""

    def class_weights(self, targets: np.ndarray, weights: np.ndarray, class_weight: ClassWeight) -> Any:
        """Return the factor of each example's weight."""

    def decision(self, logits: np.ndarray) -> np.ndarray:
        """Return what `decision_function` does."""

    def predicted(self, logits: np.ndarray) -> np.ndarray:
        """Return what `predict` does."""

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return what `predict_log_proba` does."""

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return what `predict_proba` does."""

    def losses(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the loss of each example, as the head has it."""


class ExclusiveLabels:
    """Each example has one of the classes.

    Args:
        classes: `[classes]`, sorted.

    Raises:
        ValueError: there are fewer than two.
    """

    width = 1
    exclusive = True

    def __init__(self, classes: np.ndarray) -> None:
        if len(classes) < 2:
            raise ValueError(
                f"A classifier needs samples of at least 2 classes in the data, but the data has "
                f"{len(classes)} class (samples of weight zero do not count): {classes.tolist()}."
            )
        self.classes = classes

    def head(self) -> Head:
        """See `Labels`."""
        return classification_head(len(self.classes), WEIGHT, None, "sum_over_batch_size")

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """See `Labels`. A label that is not among the classes is a ValueError."""
        ids = np.searchsorted(self.classes, labels)
        ids[ids == len(self.classes)] = 0
        unknown = self.classes[ids] != labels
        if unknown.any():
            raise ValueError(
                f"y has the labels {np.unique(labels[unknown]).tolist()}, which are not among the classes of "
                f"the first call: {self.classes.tolist()}."
            )
        return ids.astype(np.int64)[:, np.newaxis]

    def class_weights(self, targets: np.ndarray, weights: np.ndarray, class_weight: ClassWeight) -> Any:
        """See `Labels`."""
        if class_weight is None:
            return 1.0
        if class_weight == "balanced":
            sums = np.bincount(targets[:, 0], weights, minlength=len(self.classes))
            return (weights.sum() / (len(self.classes) * sums))[targets[:, 0]]
        assert isinstance(class_weight, Mapping)
        return self._weight_of_each_class(class_weight)[targets[:, 0]]

    def _weight_of_each_class(self, class_weight: Mapping[Any, float]) -> np.ndarray:
        classes = self.classes.tolist()
        unweighted = [label for label in classes if label not in class_weight]
        unknown = [label for label in class_weight if label not in classes]
        if unweighted and unknown:
            # Either alone is fine: other classes weigh one, and a part of the data may lack a class.
            raise ValueError(
                f"class_weight has weights for {unknown}, which are no classes of the data, and none for "
                f"{unweighted}. Give the weights under the labels as they are in y."
            )
        return np.array([class_weight.get(label, 1.0) for label in classes])

    def decision(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        return logits[:, 0] if len(self.classes) == 2 else logits

    def predicted(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        ids = (logits[:, 0] > 0).astype(int) if len(self.classes) == 2 else logits.argmax(axis=1)
        labels: np.ndarray = self.classes[ids]
        return labels

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        if len(self.classes) == 2:
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        logs: np.ndarray = special.log_softmax(logits, axis=1)
        return logs

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        if len(self.classes) == 2:
            return np.concatenate([special.expit(-logits), special.expit(logits)], axis=1)
        probabilities: np.ndarray = special.softmax(logits, axis=1)
        return probabilities

    def losses(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        return -np.take_along_axis(self.log_probabilities(logits), targets, axis=1)[:, 0]


class IndependentLabels:
    """Each example has any number of the classes: the labels are 0 or 1 for each.

    Args:
        count: how many classes there are.
    """

    exclusive = False

    def __init__(self, count: int) -> None:
        self.width = count
        self.classes = np.arange(count)

    def head(self) -> Head:
        """See `Labels`."""
        return MultiLabelHead(self.width, weight_column=WEIGHT)

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """See `Labels`. Labels of another width, or other than 0 and 1, are a ValueError."""
        if labels.ndim != 2 or labels.shape[1] != self.width:
            raise ValueError(f"y has shape {labels.shape}; it must have {self.width} columns as before.")
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(
                f"y of several columns must hold 0 or 1 for each class; got {np.unique(labels)}."
            )
        return labels.astype(np.int64)

    def class_weights(self, targets: np.ndarray, weights: np.ndarray, class_weight: ClassWeight) -> Any:
        """See `Labels`. Class weights are a ValueError."""
        if class_weight is not None:
            raise ValueError(
                f"class_weight={class_weight!r} is for examples of one class each; y has {self.width} "
                "columns. Use sample_weight."
            )
        return 1.0

    def decision(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        return logits

    def predicted(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        return (logits > 0).astype(int)

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        logs: np.ndarray = special.log_expit(logits)
        return logs

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        probabilities: np.ndarray = special.expit(logits)
        return probabilities

    def losses(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """See `Labels`."""
        chosen = np.where(targets == 1, special.log_expit(logits), special.log_expit(-logits))
        return -chosen.mean(axis=1)
