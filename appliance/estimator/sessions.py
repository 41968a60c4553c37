"""Sessions with hooks: the life cycle of TensorFlow's MonitoredSession, around loops of our own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator import multi_worker
from appliance.estimator.checkpoints import restoring
from appliance.estimator.cluster import spans_workers
from appliance.estimator.executor import fitting_opener
from appliance.estimator.hooks.schedule import may_trace
from appliance.estimator.run_config import RunConfig


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


def training_session(config: RunConfig, spec: Any, hooks: Sequence[Any]) -> Any:
    """Return what opens the session to train in.

    The chief initialises the variables or restores the newest checkpoint of `config.model_dir`, other
    workers wait for it; workers that train in step each do so. On this machine, options that nobody has
    chosen are those that fit the graph, and hooks that may ask for traces.
    """
    latest = tf.train.latest_checkpoint(config.model_dir)
    own_saver = spec.scaffold.saver is not None
    if multi_worker.is_shared(config):
        return _Explaining(multi_worker.JoiningSessionCreator(config, spec.scaffold), latest, own_saver)
    if not config.is_chief:
        return tf.compat.v1.train.WorkerSessionCreator(
            scaffold=spec.scaffold,
            master=config.master,
            config=config.session_config,
            max_wait_secs=config.session_creation_timeout_secs,
        )
    collective = spans_workers(config.train_distribute)
    chief = functools.partial(
        tf.compat.v1.train.ChiefSessionCreator,
        scaffold=spec.scaffold,
        checkpoint_dir=config.model_dir,
        master=multi_worker.session_target(config) if collective else config.master,
    )
    if collective:
        return _Explaining(chief(config=multi_worker.session_options(config)), latest, own_saver)
    traceable = any(may_trace(hook) for hook in hooks)
    opener = fitting_opener(chief, config, config.master, [spec.train_op, spec.loss], traceable=traceable)
    return _Explaining(opener, latest, own_saver)


def restoring_session(config: RunConfig, spec: Any, checkpoint_path: str | None, master: str) -> Any:
    """Return what opens a session with the variables of one checkpoint, or fresh ones without any.

    On this machine, options that nobody has chosen are those that fit the graph.
    """
    creator = functools.partial(
        tf.compat.v1.train.ChiefSessionCreator,
        scaffold=spec.scaffold,
        checkpoint_filename_with_path=checkpoint_path,
        master=master,
    )
    opener = fitting_opener(creator, config, master)
    return _Explaining(opener, checkpoint_path, spec.scaffold.saver is not None)


class _Explaining(tf.compat.v1.train.SessionCreator):
    """Opens a session; when the checkpoint is of another model, says how they differ."""

    def __init__(self, opener: Any, checkpoint_path: str | None, own_saver: bool) -> None:
        self._opener = opener
        self._own_saver = own_saver
        self._checkpoint_path = checkpoint_path

    def create_session(self) -> Any:
        """Open the session.

        Raises:
            CheckpointMismatch: the checkpoint lacks a variable, or has it in another shape.
        """
        with restoring(self._checkpoint_path, self._own_saver):
            return self._opener.create_session()
