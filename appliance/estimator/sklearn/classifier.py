"""The side of the classifiers: labels, class weights, probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from appliance.estimator.heads import Head
from appliance.estimator.sklearn.base import Model, weighted_rows
from appliance.estimator.sklearn.labels import ClassWeight, ExclusiveLabels, IndependentLabels, Labels
from appliance.estimator.sklearn.rows import Rows


class Classifier(ClassifierMixin, Model):
    """A canned classifier; `classes_` are the labels in the order of the probabilities.

    When `y` has a column of 0 and 1 for each class, an example may have any number of classes; `classes_` are
    then the numbers of the columns.
    """

    class_weight: Any
    _labels: Labels

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the start.

        Args:
            X: `[rows, features]`, dense or sparse.
            y: `[rows]`, labels of any kind; or `[rows, classes]` of 0 and 1.
            sample_weight: `[rows]`, not negative; a weight of two counts as two copies, zero as none.

        Raises:
            ValueError: a parameter or the data is not as it must be.
        """
        weights = self._class_weights()
        rows, labels = self._checked_rows(X, y, sample_weight, reset=True)
        self._set_labels(labels, np.unique(labels))
        return self._fit_from_scratch(self._encoded(rows, labels, weights), self._labels.exclusive)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one pass over some data, from where the last call ended.

        Args:
            X, y, sample_weight: as for `fit`.
            classes: all labels there are; needed in the first call, unless `y` has a column for each.

        Raises:
            ValueError: as in `fit`, or there is a label that was not among `classes`.
        """
        first = not hasattr(self, "variables_")
        weights = self._class_weights()
        if weights == "balanced":
            raise ValueError(
                "class_weight='balanced' is not supported by partial_fit, which does not see all data. Give "
                "a dict of class to weight, computed by sklearn.utils.compute_class_weight."
            )
        rows, labels = self._checked_rows(X, y, sample_weight, reset=first)
        if first:
            if classes is None and labels.ndim == 1:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self._set_labels(labels, np.unique(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes} is not what it was before: {self.classes_}.")
        return self._fit_more(self._encoded(rows, labels, weights))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits, float64 `[rows, classes]`; for two classes `[rows]`, positive for the second."""
        logits = self._predicted_logits(X)
        return self._labels.decision(logits)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely label of each row; or 0 and 1, `[rows, classes]`, as `y` was."""
        logits = self._predicted_logits(X)
        return self._labels.predicted(logits)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, float64 `[rows, classes]`."""
        logits = self._predicted_logits(X)
        return self._labels.probabilities(logits)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of `predict_proba`."""
        logits = self._predicted_logits(X)
        return self._labels.log_probabilities(logits)

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn is to know: an example may have several classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _head(self) -> Head:
        return self._labels.head()

    def _mean_loss(self, logits: np.ndarray, rows: Rows) -> float:
        return float(np.average(self._labels.losses(logits, rows.targets), weights=rows.weights))

    def _example(self) -> Rows:
        features = np.zeros((0, self.n_features_in_), np.float32)
        return Rows(features, np.zeros((0, self._labels.width), np.int64), np.zeros(0))

    def _label_vocabulary(self) -> list[str] | None:
        """Return the names of the classes for the canned classifier; None when they are 0, 1, ..."""
        if self.classes_.dtype.kind in "iu" and np.array_equal(self.classes_, np.arange(len(self.classes_))):
            return None
        return [str(label) for label in self.classes_.tolist()]

    def _set_labels(self, labels: np.ndarray, classes: np.ndarray) -> None:
        self._labels = ExclusiveLabels(classes) if labels.ndim == 1 else IndependentLabels(labels.shape[1])
        self.classes_ = self._labels.classes

    def _checked_rows(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Rows, np.ndarray]:
        """Return the examples that count, whose targets are their positions in `y`, and their labels."""
        features, labels = self._checked_data(X, y, multi_output=True, reset=reset)
        check_classification_targets(labels)
        labels = labels.toarray() if sparse.issparse(labels) else labels
        if not type_of_target(labels).startswith("multilabel"):
            labels = column_or_1d(labels, warn=True)
        weights = _check_sample_weight(sample_weight, features, dtype=np.float64)
        rows = weighted_rows(features, np.arange(len(labels))[:, np.newaxis], weights)
        return rows, labels[rows.targets[:, 0]]

    def _encoded(self, rows: Rows, labels: np.ndarray, class_weight: ClassWeight) -> Rows:
        """Return the rows with the targets that the head takes, and the class weights in the weights."""
        targets = self._labels.targets(labels)
        factor = self._labels.class_weights(targets, rows.weights, class_weight)
        return weighted_rows(rows.features, targets, rows.weights * factor)

    def _class_weights(self) -> ClassWeight:
        """Return the parameter `class_weight`.

        Raises:
            ValueError: it is neither None nor 'balanced' nor a dict.
        """
        weights: ClassWeight = self.class_weight
        if weights is None or isinstance(weights, Mapping) or weights == "balanced":
            return weights
        raise ValueError(
            f"class_weight must be a dict of class to weight, 'balanced' or None; got {weights!r}."
        )
