"""Sessions with hooks: the life cycle of TensorFlow's MonitoredSession, around loops of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


class _Handle(tf.compat.v1.train.SessionRunHook):
    """The last of the hooks: it learns the session and its coordinator."""

    session: Any = None
    coordinator: Any = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.session, self.coordinator = session, coord


@contextlib.contextmanager
def hooked_session(session_creator: Any, hooks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Open a session on the default graph and yield it with its coordinator.

    `begin` of every hook is called before the graph is finalized, `after_create_session` once the variables
    are there, and `end` when the body is left normally or because the input ended, but not when it raises.
    """
    graph = tf.compat.v1.get_default_graph()
    handle = _Handle()
    monitored = tf.compat.v1.train.MonitoredSession(session_creator, hooks=[*hooks, handle])

    def leave(*error: Any) -> Any:
        # The body may be left, by a generator for instance, while another graph is the default one.
        with graph.as_default():
            return monitored.__exit__(*error)

    with contextlib.ExitStack() as stack:
        stack.push(leave)
        yield handle.session, handle.coordinator
