"""A train-to-deploy appliance for TensorFlow: Estimators, jobs, a client and the `appliance` command."""

import keras_on_demand  # noqa: F401  Before TensorFlow is imported.

__version__ = "0.1.0"
