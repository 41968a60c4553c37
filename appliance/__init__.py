"""A train-to-deploy appliance for TensorFlow: Estimators, jobs, a client and the `appliance` command."""

import collector_pause  # noqa: F401  Before TensorFlow is imported.
import keras_on_demand  # noqa: F401  Before TensorFlow is imported.

__version__ = "0.1.0"
