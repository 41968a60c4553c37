"""The control plane over HTTP: jobs and the registry under /api/v1, beside the predictions under /v1."""
