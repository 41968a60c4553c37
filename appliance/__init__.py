"""A train-to-deploy appliance for TensorFlow: Estimators, jobs, a client and the `appliance` command."""

__version__ = "0.1.0"
