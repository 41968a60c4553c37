"""Optimizers for graphs, from names and from Keras or v1 objects, checkpointed as tf.estimator did."""

from appliance.estimator.optimizers.apply import (
    build_train_op,
    get_optimizer,
    gradients,
    minimize,
    scale_for_replicas,
)
from appliance.estimator.optimizers.base import GraphOptimizer, training_scope
from appliance.estimator.optimizers.keras3 import forget_variables
from appliance.estimator.optimizers.rules import SGD, Adagrad, Adam, Ftrl, RMSprop

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Ftrl",
    "GraphOptimizer",
    "RMSprop",
    "build_train_op",
    "forget_variables",
    "get_optimizer",
    "gradients",
    "minimize",
    "scale_for_replicas",
    "training_scope",
]
