"""The losses of Keras where several replicas are built."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class _Replica(threading.local):
    """Each replica is built in a thread of its own, and they take turns in the middle of a model."""

    shares = False


_replica = _Replica()


@contextlib.contextmanager
def keras_losses_as_on_one_device() -> Iterator[None]:
    """Let the losses of Keras in the replicas that the body builds be those of their batches.

    Keras divides them by the number of replicas, because gradients are summed. Here the optimizers see to
    that, whatever the loss is made with; and the loss of an evaluation is that of the batch. The exception is
    a model that `loss_shares` is used for.
    """
    import keras.src.losses.loss as losses

    # Keras has no switch for it: its losses call these two functions.
    given = {"scale_loss_for_distribution": _scaled, "unscale_loss_for_distribution": _unscaled}
    before = {name: getattr(losses, name) for name in given}
    for name, function in given.items():
        setattr(losses, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(losses, name, function)


@contextlib.contextmanager
def loss_shares() -> Iterator[None]:
    """Let a loss of Keras in the body be this replica's share of that of all examples.

    Means are divided by the number of replicas, sums are not: only Keras knows which of a model's losses are
    means.
    """
    _replica.shares = True
    try:
        yield
    finally:
        _replica.shares = False


def whole_loss(share: Any) -> Any:
    """Return the loss of which the mean over the replicas is that of all examples, from this one's share."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return share * replicas if replicas > 1 else share


def _scaled(loss: Any) -> Any:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return loss / replicas if _replica.shares and replicas > 1 else loss


def _unscaled(loss: Any) -> Any:
    return whole_loss(loss) if _replica.shares else loss
