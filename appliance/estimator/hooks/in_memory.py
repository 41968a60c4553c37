"""A hook that evaluates the model in the middle of training, without checkpoints."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator.executor import fitting_opener
from appliance.estimator.summaries import write_evaluation

log = logging.getLogger("appliance.estimator")

_train = tf.compat.v1.train


class InMemoryEvaluatorHook(tf.compat.v1.train.SessionRunHook):
    """Evaluates in the training process: before the first step, every so many steps, and at the end.

    The variables go straight from the session that trains into the one that evaluates. Results are written
    to `estimator.eval_dir(name)`.

    Args:
        estimator: the Estimator that is being trained.
        input_fn: the evaluation data, as for `Estimator.evaluate`.
        steps: how many batches to take; None: all.
        hooks: SessionRunHooks of the evaluation.
        name: of the evaluation, as for `Estimator.evaluate`.
        every_n_iter: steps between two evaluations.

    Raises:
        ValueError: `every_n_iter` is not positive, or the Estimator trains in a cluster; when training
            begins, if the model has a saver, saveable objects or an init_fn of its own, which have no part
            in it.

    Source: `tf.estimator.experimental.InMemoryEvaluatorHook`.
    """

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or every_n_iter <= 0:
            raise ValueError(f"every_n_iter must be positive. Received: {every_n_iter!r}.")
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1 or config.train_distribute:
            raise ValueError(
                "InMemoryEvaluatorHook supports only single machine (aka Local) setting. "
                "In a cluster let an evaluator task follow the checkpoints, by train_and_evaluate."
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._eval_hooks = list(hooks or ())
        self._eval_dir = estimator.eval_dir(name)
        self._timer = _train.SecondOrStepTimer(every_steps=every_n_iter)

    def begin(self) -> None:
        """Build the graph of the evaluation."""
        self._timer.reset()
        self._global_step = _train.get_global_step()
        training = {variable.name: variable for variable in _saved_variables()}
        self._stack, self._graph, self._evaluation, scaffold = self._estimator._open_evaluation(
            self._input_fn, self._eval_hooks
        )
        with self._graph.as_default():
            _check(scaffold)
            shared = {v.name: v for v in _saved_variables() if v.name in training}
            self._training = {name: training[name] for name in shared}
            self._new = {
                name: tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
                for name, variable in shared.items()
            }
            self._assign = tf.group(*(v.assign(self._new[name]).op for name, v in shared.items()))
        self._scaffold = scaffold

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Evaluate what training starts from."""
        self._evaluate(session)

    def before_run(self, run_context: Any) -> Any:
        """Ask for the global step."""
        return _train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Evaluate, when it is time."""
        if self._timer.should_trigger_for_step(run_values.results + 1):
            self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        """Evaluate the last step, and let the graph and the data go."""
        self._evaluate(session)
        self._stack.close()

    def _evaluate(self, session: Any) -> None:
        values = session.run(self._training)
        feeds = {self._new[name]: value for name, value in values.items()}

        def load(_: Any, evaluating: Any) -> None:
            evaluating.run(self._assign, feeds)

        with self._graph.as_default():
            creator = functools.partial(
                _train.ChiefSessionCreator,
                scaffold=_train.Scaffold(init_fn=load, copy_from_scaffold=self._scaffold),
            )
            opener = fitting_opener(creator, self._estimator.config, master="")
            results = self._evaluation.run(opener, self._steps)
        step = int(results[tf.compat.v1.GraphKeys.GLOBAL_STEP])
        write_evaluation(self._eval_dir, results, step, None)
        log.info("evaluation_done", extra={"step": step, "checkpoint": None, "metrics": results})
        self._timer.update_last_triggered_step(step)


def _saved_variables() -> list[Any]:
    return tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)


def _check(scaffold: Any) -> None:
    objects = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)
    for thing, given in (
        ("custom saver", scaffold.saver),
        ("custom init_fn", scaffold.init_fn),
        ("saveables other than global variables", objects),
    ):
        if given:
            raise ValueError(
                f"InMemoryEvaluatorHook does not support {thing}. Given: {given}. "
                "Evaluate checkpoints instead, by train_and_evaluate."
            )
