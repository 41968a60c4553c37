"""Training jobs: the queue, the worker and the process of one job."""
