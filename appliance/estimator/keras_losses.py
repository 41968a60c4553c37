"""The losses of a Keras model that several replicas have a copy of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def replica_losses(shares: bool) -> Iterator[None]:
    """Compute the losses of Keras in the body, which builds one replica.

    Args:
        shares: whether a loss is this replica's share of that of all examples, as training needs it, where
            the gradients of all replicas are summed: means are divided by the number of replicas, sums are
            not. Otherwise it is that of the batch, as on one device.
    """
    if _replicas() == 1:
        yield
        return
    import keras.src.losses.loss as losses

    # Keras has no switch for it: its losses call these two functions.
    given = {
        "scale_loss_for_distribution": _share if shares else _whole,
        "unscale_loss_for_distribution": whole_loss if shares else _whole,
    }
    before = {name: getattr(losses, name) for name in given}
    for name, function in given.items():
        setattr(losses, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(losses, name, function)


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _share(loss: Any) -> Any:
    return loss / _replicas() if _replicas() > 1 else loss


def whole_loss(share: Any) -> Any:
    """Return the loss of which the mean over the replicas is that of all examples, from this one's share."""
    return share * _replicas() if _replicas() > 1 else share


def _whole(loss: Any) -> Any:
    return loss
