"""The same training on two virtual CPUs and on one, in a process of its own."""

import json
import sys

import numpy as np
import tensorflow as tf


def print_both(run, makes):
    """Print as JSON, by the name of each of `makes`, what `run` returns on two devices and on one.

    `run(make, model_dir, strategy, batch)`: the batch of a replica; the folder comes from the command line.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    results = {}
    for make in makes:
        strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        name = make.__name__
        mirrored = run(make, f"{sys.argv[1]}/{name}-2", strategy, 8)
        results[name] = (mirrored, run(make, f"{sys.argv[1]}/{name}-1", None, 16))
    print(json.dumps(results))


def values(model):
    """Return all variables of the last checkpoint, as lists."""
    return {name: np.asarray(model.get_variable_value(name)).tolist() for name in model.get_variable_names()}
