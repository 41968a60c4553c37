"""Serving of SavedModels: a model server, and a gateway that follows the registry."""

import collector_pause  # noqa: F401  Before TensorFlow is imported.
import keras_on_demand  # noqa: F401  Before TensorFlow is imported.
