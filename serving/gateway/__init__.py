"""The gateway: resolves labels to versions in front of a runtime, over REST and gRPC."""
