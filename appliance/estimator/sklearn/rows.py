"""Training data in memory: features, targets, weights; equal rows are one row with the sum of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse


class Rows(NamedTuple):
    """Examples.

    Fields:
        features: float32 `[rows, features]`, an array or a CSR matrix in canonical format.
        targets: `[rows, targets]`, float32 values or int64 class ids.
        weights: float64 `[rows]`, positive.
    """

    features: Any
    targets: np.ndarray
    weights: np.ndarray

    def take(self, indices: np.ndarray) -> Rows:
        """Return the rows at `indices`."""
        return Rows(*(array[indices] for array in self))

    def distinct(self) -> Rows:
        """Return each row once, with the sum of its weights, in an order that its content decides.

        Hence a weight of two is the same as two copies, to the last bit, when all rows fit into one batch,
        and the order in which the examples come does not matter.
        """
        keys = _fingerprints(self.features) + 3 * _fingerprints(self.targets)
        order = np.argsort(keys, kind="stable")
        rows, keys = self.take(order), keys[order]
        # Only neighbours with the same fingerprint are compared in full.
        twins = np.flatnonzero(keys[1:] == keys[:-1])
        again = np.zeros(len(keys), bool)
        for table in (rows.features, rows.targets):
            again[twins + 1] = _equal_rows(table[twins], table[twins + 1])
            twins = twins[again[twins + 1]]
        first = np.flatnonzero(~again)
        return rows.take(first)._replace(weights=np.add.reduceat(rows.weights, first))

    def normalized(self) -> Rows:
        """Return the rows with weights whose mean is one: losses then do not depend on their scale."""
        return self._replace(weights=self.weights * (len(self.weights) / self.weights.sum()))

    def batches(self, size: int, random: np.random.RandomState) -> Iterator[Rows]:
        """Yield all rows in batches, in random order unless one batch holds them all."""
        count = len(self.weights)
        if count <= size:
            yield self
            return
        order = random.permutation(count)
        for start in range(0, count, size):
            yield self.take(order[start : start + size])


def _fingerprints(table: Any) -> np.ndarray:
    """Return a number for each row, equal for equal rows, uint64 `[rows]`; zeros add nothing to it."""
    numbers = np.zeros(table.shape[0], np.uint64)
    if sparse.issparse(table):
        factors = _factors(table.shape[1])
        rows = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
        np.add.at(numbers, rows, _words(table.data) * factors[table.indices])
        return numbers
    words = table.view(np.uint32)
    for column, factor in enumerate(_factors(words.shape[1])):
        # Column by column, so that no second table is made. The products wrap around.
        numbers += words[:, column].astype(np.uint64) * factor
    return numbers


def _words(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32).astype(np.uint64)


def _factors(count: int) -> np.ndarray:
    return 2 * np.random.RandomState(0).randint(1, 2**62, size=count, dtype=np.int64).astype(np.uint64) + 1


def _equal_rows(some: Any, others: Any) -> np.ndarray:
    """Return for each row whether it is the same in both tables."""
    different = some != others
    return np.asarray(different.sum(axis=1)).ravel() == 0
