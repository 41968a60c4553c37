"""Nothing of a call stays behind when it is over."""

import gc

import tensorflow as tf

from benchmarks.memory import alternate


def live_graphs():
    gc.collect()
    return sum(isinstance(thing, tf.Graph) for thing in gc.get_objects())


def test_graphs_are_let_go_when_a_call_ends():
    """Train and evaluate in turns; `python -m benchmarks.memory` does so three hundred times."""
    counts = [live_graphs() for _ in alternate(6)]
    # The first two calls may leave something that is made once and for all.
    assert len(set(counts[1:])) == 1
