"""Passes over the training data, until the loss improves no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from appliance.estimator.sklearn.rows import Rows
from appliance.estimator.sklearn.trainer import Trainer


class Limits(NamedTuple):
    """When training ends.

    Fields:
        batch_size: examples a step.
        epochs: passes over the data, at most.
        steps: steps, at most; None for no limit.
        patience: how many passes in a row may bring no improvement.
        tolerance: how much less the loss must be to be an improvement.
    """

    batch_size: int
    epochs: int
    steps: int | None
    patience: float
    tolerance: float


class History(NamedTuple):
    """What a training run was like.

    Fields:
        losses: the mean training loss of each pass.
        validation_losses: the loss on the validation data after each pass; empty without such.
        variables: those of the best pass when there is validation data, else the last ones.
    """

    losses: list[float]
    validation_losses: list[float]
    variables: dict[str, np.ndarray]


def train(
    trainer: Trainer,
    rows: Rows,
    limits: Limits,
    random: np.random.RandomState,
    validation_loss: Callable[[Mapping[str, np.ndarray]], float] | None = None,
) -> History:
    """Train pass by pass.

    Args:
        trainer: the model.
        rows: the training data.
        limits: when to end.
        random: for the order of the examples.
        validation_loss: from the variables to the loss that must improve; None: the training loss must.

    Raises:
        ValueError: the loss became NaN or infinite.
    """
    losses: list[float] = []
    validation_losses: list[float] = []
    best, waited, steps_left = math.inf, 0, math.inf if limits.steps is None else limits.steps
    best_variables: dict[str, np.ndarray] | None = None
    while len(losses) < limits.epochs and steps_left > 0 and waited < limits.patience:
        total, seen = 0.0, 0
        for batch in rows.batches(limits.batch_size, random):
            count = len(batch.weights)
            total, seen = total + trainer.step(batch) * count, seen + count
            steps_left -= 1
            if steps_left <= 0:
                break
        losses.append(_checked(total / seen, len(losses)))
        watched = losses[-1]
        if validation_loss is not None:
            variables = trainer.values()
            watched = validation_loss(variables)
            validation_losses.append(watched)
            if best_variables is None or watched < min(validation_losses[:-1]):
                best_variables = variables
        waited = 0 if watched < best - limits.tolerance else waited + 1
        best = min(best, watched)
    return History(losses, validation_losses, best_variables or trainer.values())


def _checked(loss: float, epoch: int) -> float:
    if not math.isfinite(loss):
        raise ValueError(
            f"The loss became {loss} in pass {epoch + 1} over the data. Scale the features and targets, for "
            "instance with StandardScaler, or lower learning_rate."
        )
    return loss
