"""The side of the classifiers: classes, class weights, probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy import special
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from appliance.estimator.canned.model_fns import classification_head
from appliance.estimator.heads import Head
from appliance.estimator.sklearn.base import Model, weighted_rows
from appliance.estimator.sklearn.rows import Rows
from appliance.estimator.sklearn.trainer import WEIGHT


class Classifier(ClassifierMixin, Model):
    """A canned classifier; `classes_` are the labels in the order of the probabilities."""

    class_weight: Any

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the start.

        Args:
            X: `[rows, features]`, dense or sparse.
            y: `[rows]`, labels of any kind.
            sample_weight: `[rows]`, not negative; a weight of two counts as two copies, zero as none.

        Raises:
            ValueError: a parameter or the data is not as it must be.
        """
        rows, labels = self._checked_rows(X, y, sample_weight, reset=True)
        self._set_classes(np.unique(labels))
        return self._fit_from_scratch(self._encoded(rows, labels, self._class_weights()), stratify=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one pass over some data, from where the last call ended.

        Args:
            X, y, sample_weight: as for `fit`.
            classes: all labels there are; needed in the first call.

        Raises:
            ValueError: as in `fit`, or there is a label that was not among `classes`.
        """
        first = not hasattr(self, "classes_")
        weights = self._class_weights()
        if weights == "balanced":
            raise ValueError(
                "class_weight='balanced' is not supported by partial_fit, which does not see all data. Give "
                "a dict of class to weight, computed by sklearn.utils.compute_class_weight."
            )
        rows, labels = self._checked_rows(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self._set_classes(np.unique(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes} is not what it was before: {self.classes_}.")
        return self._fit_more(self._encoded(rows, labels, weights))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits, float64 `[rows, classes]`; for two classes `[rows]`, positive for the second."""
        logits = self._predicted_logits(X)
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely label of each row."""
        decision = self.decision_function(X)
        indices = decision > 0 if decision.ndim == 1 else decision.argmax(axis=1)
        labels: np.ndarray = self.classes_[indices.astype(int)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, float64 `[rows, classes]`."""
        decision = self.decision_function(X)
        if decision.ndim == 1:
            return np.stack([special.expit(-decision), special.expit(decision)], axis=1)
        probabilities: np.ndarray = special.softmax(decision, axis=1)
        return probabilities

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of `predict_proba`."""
        return _log_probabilities(self._predicted_logits(X))

    def _head(self) -> Head:
        return classification_head(len(self.classes_), WEIGHT, None, "sum_over_batch_size")

    def _mean_loss(self, logits: np.ndarray, rows: Rows) -> float:
        chosen = np.take_along_axis(_log_probabilities(logits), rows.targets, axis=1)[:, 0]
        return float(np.average(-chosen, weights=rows.weights))

    def _example(self) -> Rows:
        features = np.zeros((0, self.n_features_in_), np.float32)
        return Rows(features, np.zeros((0, 1), np.int64), np.zeros(0))

    def _label_vocabulary(self) -> list[str] | None:
        """Return the names of the classes for the canned classifier; None when they are 0, 1, ..."""
        if self.classes_.dtype.kind in "iu" and np.array_equal(self.classes_, np.arange(len(self.classes_))):
            return None
        return [str(label) for label in self.classes_.tolist()]

    def _set_classes(self, classes: np.ndarray) -> None:
        if len(classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes in the data, but the data has "
                f"{len(classes)} class (samples of weight zero do not count): {classes.tolist()}."
            )
        self.classes_ = classes

    def _checked_rows(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Rows, np.ndarray]:
        """Return the examples that count, whose targets are their positions in `y`, and their labels."""
        features, labels = self._checked_data(X, y, reset=reset)
        check_classification_targets(labels)
        labels = column_or_1d(labels, warn=True)
        weights = _check_sample_weight(sample_weight, features, dtype=np.float64)
        rows = weighted_rows(features, np.arange(len(labels))[:, np.newaxis], weights)
        return rows, labels[rows.targets[:, 0]]

    def _encoded(
        self, rows: Rows, labels: np.ndarray, class_weight: Mapping[Any, float] | str | None
    ) -> Rows:
        """Return the rows with class ids as targets, and the class weights in the weights."""
        ids = np.searchsorted(self.classes_, labels)
        ids[ids == len(self.classes_)] = 0
        unknown = self.classes_[ids] != labels
        if unknown.any():
            raise ValueError(
                f"y has the labels {np.unique(labels[unknown]).tolist()}, which are not among the classes of "
                f"the first call: {self.classes_.tolist()}."
            )
        weights = rows.weights
        if class_weight == "balanced":
            sums = np.bincount(ids, weights, minlength=len(self.classes_))
            weights = weights * (weights.sum() / (len(self.classes_) * sums))[ids]
        elif isinstance(class_weight, Mapping):
            weights = weights * self._weight_of_each_class(class_weight)[ids]
        return weighted_rows(rows.features, ids.astype(np.int64)[:, np.newaxis], weights)

    def _weight_of_each_class(self, class_weight: Mapping[Any, float]) -> np.ndarray:
        classes = self.classes_.tolist()
        unweighted = [label for label in classes if label not in class_weight]
        unknown = [label for label in class_weight if label not in classes]
        if unweighted and unknown:
            # Either alone is fine: other classes weigh one, and a part of the data may lack a class.
            raise ValueError(
                f"class_weight has weights for {unknown}, which are no classes of the data, and none for "
                f"{unweighted}. Give the weights under the labels as they are in y."
            )
        return np.array([class_weight.get(label, 1.0) for label in classes])

    def _class_weights(self) -> Mapping[Any, float] | str | None:
        """Return the parameter `class_weight`.

        Raises:
            ValueError: it is neither None nor 'balanced' nor a dict.
        """
        weights: Mapping[Any, float] | str | None = self.class_weight
        if weights is None or isinstance(weights, Mapping) or weights == "balanced":
            return weights
        raise ValueError(
            f"class_weight must be a dict of class to weight, 'balanced' or None; got {weights!r}."
        )


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    logs: np.ndarray = special.log_softmax(logits, axis=1)
    return logs
