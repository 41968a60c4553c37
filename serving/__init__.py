"""Serving of SavedModels: a model server, and a gateway that follows the registry."""
