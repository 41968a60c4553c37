"""A stand-in for tensorflow_model_server: the same flags, the same gRPC and REST protocol."""
