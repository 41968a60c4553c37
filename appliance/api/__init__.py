"""The control plane over HTTP: jobs and the registry."""
