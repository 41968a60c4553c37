"""Estimator: a model_fn, and the four verbs that train it, evaluate it, predict with it and export it."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from appliance.estimator import checkpoints, distribute, replicated_evaluation, warm_start
from appliance.estimator.checks import (
    check_overrides,
    check_steps,
    check_writable,
    checked_hooks,
    checked_listeners,
    no_data,
)
from appliance.estimator.cluster import spans_workers
from appliance.estimator.cluster_tasks import training_device
from appliance.estimator.eager_values import eagerly
from appliance.estimator.evaluation import Evaluation
from appliance.estimator.hooks.defaults import training_hooks
from appliance.estimator.input_graph import Inputs, input_share
from appliance.estimator.loop import HookedFetches, TrainingLoop
from appliance.estimator.model_fn import (
    EstimatorSpec,
    ModeKeys,
    call_model_fn,
    check_model_fn,
)
from appliance.estimator.predictions import chosen, examples, following
from appliance.estimator.run_config import RunConfig, complete
from appliance.estimator.saved_model import Exporter
from appliance.estimator.sessions import hooked_session, restoring_session, training_session
from appliance.estimator.summaries import add_loss_summary, write_evaluation

log = logging.getLogger("appliance.estimator")

InputFn = Callable[..., Any]
_END = object()


class Estimator:
    """A model and what can be done with it; every call builds a fresh graph from the newest checkpoint.

    Args:
        model_fn: `model_fn(features, labels, mode, params, config)`, of which it must take `features` and may
            leave out the others; returns an `EstimatorSpec`.
        model_dir: folder of checkpoints and summaries; a temporary one when neither this nor the config names
            one.
        config: a `RunConfig`.
        params: passed on to `model_fn`, as a deep copy.
        warm_start_from: a checkpoint, a model_dir or a SavedModel's folder from which trainable variables get
            their first values, or `WarmStartSettings`. Not used once model_dir has a checkpoint.

    Raises:
        ValueError: the arguments of `model_fn`, the config or the model_dir are not as above; or a subclass
            overrides a method that is not its own.

    Source: `tf.estimator.Estimator`.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        check_overrides(type(self), Estimator)
        check_model_fn(model_fn, params)
        self._warm_start = warm_start.settings_from(warm_start_from)
        self._config = distribute.with_devices(complete(config, model_dir))
        self._params = copy.deepcopy(params if params is not None else {})
        self._model_fn = model_fn

    @property
    def model_dir(self) -> str:
        """The folder of checkpoints and summaries."""
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """A copy of the config."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Any:
        """A copy of the parameters."""
        with eagerly():  # A Keras optimizer among them cannot be copied while a graph is being built.
            return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[[Any, Any, str, Any], EstimatorSpec]:
        """The model_fn bound to the parameters, with arguments features, labels, mode, config."""

        def public_model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
            return self._call_model_fn(features, labels, mode, config)

        return public_model_fn

    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Estimator:
        """Train from the newest checkpoint on.

        Args:
            input_fn: returns a Dataset of (features, labels), or the tensors.
            hooks: SessionRunHooks.
            steps: how many steps to add; None: until the data ends.
            max_steps: the global step to end at; nothing happens when it is reached already.
            saving_listeners: CheckpointSaverListeners.

        Returns:
            this estimator.

        Raises:
            ValueError: both or a non-positive one of `steps` and `max_steps`; listeners without checkpoints;
                no data; a checkpoint of another model.
            TypeError: hooks or listeners of another type.
            OSError: model_dir cannot be written to.
            NanLossDuringTrainingError: the loss became NaN.
        """
        check_steps(steps=steps, max_steps=max_steps)
        hooks = checked_hooks(hooks)
        listeners = checked_listeners(saving_listeners)
        done = 0 if max_steps is None else checkpoints.global_step(self.latest_checkpoint())
        if max_steps is not None and done >= max_steps:
            reason = "max_steps is reached already: raise it to train on"
            log.info("training_skipped", extra={"max_steps": max_steps, "step": done, "reason": reason})
            return self
        check_writable(self.model_dir, "checkpoints")
        if steps is not None or max_steps is not None:
            hooks.append(tf.compat.v1.train.StopAtStepHook(steps, max_steps))
        with self._new_graph(training_device(self._config), self._config.train_distribute):
            step, loss = self._train_graph(input_fn, hooks, listeners)
        log.info("training_done", extra={"step": step, "loss": loss})
        return self

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint.

        Args:
            input_fn: returns a Dataset of (features, labels), or the tensors.
            steps: how many batches to take; None: all.
            hooks: SessionRunHooks.
            checkpoint_path: the checkpoint; None: the newest. Without any the variables are initialised.
            name: summaries go to `model_dir/eval_<name>`; None: to `model_dir/eval`.

        Returns:
            metrics by name as numpy scalars or arrays, with `loss` (the mean over batches) and `global_step`.

        Raises:
            ValueError: `steps` is not positive, there is no such checkpoint, or it is of another model.
            OSError: the folder of the summaries cannot be written to.
        """
        check_steps(steps=steps)
        hooks = checked_hooks(hooks)
        path = self._existing(checkpoint_path)
        check_writable(self.eval_dir(name), "summaries")
        with self._new_graph(strategy=self._config.eval_distribute):
            results = self._evaluate_graph(input_fn, steps, hooks, path)
            step = int(results[tf.compat.v1.GraphKeys.GLOBAL_STEP])
            written = None if path is None else checkpoints.unpinned(path)
            write_evaluation(self.eval_dir(name), results, step, written)
        log.info("evaluation_done", extra={"step": step, "checkpoint": written, "metrics": results})
        return results

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Iterable[str] | str | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield predictions, lazily.

        Args:
            input_fn: returns a Dataset of features or of (features, labels), or tensors; labels are ignored.
            predict_keys: the predictions to yield, when they are a dict; None: all.
            hooks: SessionRunHooks.
            checkpoint_path: the checkpoint; None: the newest. Without any the variables are initialised.
            yield_single_examples: whether to yield example by example, in place of batches.

        Raises:
            ValueError: there is no such checkpoint or key, or predictions differ in their first dimension.
        """
        hooks = checked_hooks(hooks)
        path = self._existing(checkpoint_path)
        with contextlib.ExitStack() as stack:
            # Between two predictions the caller's default graph is its own again.
            with self._new_graph() as graph:
                batches = stack.enter_context(self._predict_graph(input_fn, predict_keys, hooks, path))
            while True:
                with graph.as_default():
                    batch = next(batches, _END)
                if batch is _END:
                    return
                yield from examples(batch) if yield_single_examples else (batch,)

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Write the model of one mode to `<export_dir_base>/<seconds since the epoch>/` and return that path.

        Args:
            export_dir_base: folder of all versions.
            serving_input_receiver_fn: returns a `ServingInputReceiver` or `TensorServingInputReceiver`.
            assets_extra: destination below `assets.extra/` to the file that is copied there.
            as_text: whether to write saved_model.pbtxt.
            checkpoint_path: the checkpoint; None: the newest.
            experimental_mode: the mode whose graph is exported.

        Raises:
            ValueError: there is no (such) checkpoint, or the receiver or the signatures are not valid.
        """
        if serving_input_receiver_fn is None:
            raise ValueError("An input_receiver_fn must be defined. Given: None")
        return self.experimental_export_all_saved_models(
            export_dir_base,
            {experimental_mode: serving_input_receiver_fn},
            assets_extra=assets_extra,
            as_text=as_text,
            checkpoint_path=checkpoint_path,
        )

    def export_savedmodel(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """Do what `export_saved_model` does, under its older name; default attributes are always stripped."""
        return self.export_saved_model(
            export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base: str | os.PathLike[str],
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Write the models of several modes, with shared variables, as one SavedModel.

        Args:
            input_receiver_fn_map: for each mode the function that returns its input receiver.

        Raises:
            ValueError: as in `export_saved_model`, or a mode has a variable that the checkpoint lacks.
        """
        path = self._existing(checkpoint_path)
        if path is None and self._warm_start is not None:
            path = warm_start.checkpoint_of(self._warm_start)
        if path is None:
            raise ValueError(
                f"Couldn't find trained model at {self.model_dir}. Train first, or give checkpoint_path."
            )

        def build(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            self._seed()
            return self._call_model_fn(features, labels, mode, self.config)

        exported = Exporter(build, path, self._config.session_config).export(
            os.fspath(export_dir_base), input_receiver_fn_map, assets_extra, as_text
        )
        log.info("model_exported", extra={"path": os.fsdecode(exported), "checkpoint": path})
        return exported

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint, or None."""
        return tf.train.latest_checkpoint(self.model_dir)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the folder of the summaries of evaluations under `name`."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the newest checkpoint.

        Raises:
            ValueError: there is none.
        """
        return [name for name, _ in tf.train.list_variables(self._trained())]

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the newest checkpoint, as a numpy array.

        Raises:
            ValueError: there is no checkpoint.
        """
        return tf.train.load_variable(self._trained(), name)

    def _trained(self) -> str:
        path = self.latest_checkpoint()
        if path is None:
            raise ValueError(f"Couldn't find trained model at {self.model_dir}. Train first.")
        return path

    def _existing(self, checkpoint_path: str | None) -> str | None:
        if checkpoint_path is None:
            return self.latest_checkpoint()
        checkpoints.check_exists(checkpoint_path)
        return checkpoint_path

    @contextlib.contextmanager
    def _new_graph(self, device: Any = None, strategy: Any = None) -> Iterator[Any]:
        """Make a graph with seed, device function and global step the default one."""
        with contextlib.ExitStack() as stack:
            graph = stack.enter_context(tf.Graph().as_default())
            stack.enter_context(graph.device(device or self._config.device_fn))
            if strategy is not None:
                stack.enter_context(strategy.scope())
            self._seed()
            self._create_and_assert_global_step(graph)
            yield graph

    def _seed(self) -> None:
        tf.compat.v1.set_random_seed(self._config.tf_random_seed)

    def _create_and_assert_global_step(self, graph: Any) -> Any:
        """Create the int64 global step; a subclass may do so in its own way."""
        return tf.compat.v1.train.create_global_step(graph)

    def _inputs(self, input_fn: InputFn, mode: str) -> Inputs:
        share = input_share(self._config) if mode == ModeKeys.TRAIN else None
        optional = {"mode": mode, "params": self.params, "config": self.config, "input_context": share}
        if mode == ModeKeys.TRAIN:
            return distribute.training_inputs(self._config, input_fn, optional)
        strategy = self._config.eval_distribute if mode == ModeKeys.EVAL else None
        return replicated_evaluation.evaluation_inputs(strategy, input_fn, optional)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        return call_model_fn(self._model_fn, features, labels, mode, self.params, config)

    def _start_warm(self, checkpoint_path: str | None) -> None:
        """Give variables their first values from elsewhere, unless a checkpoint will be restored."""
        if checkpoint_path is None and self._warm_start is not None:
            warm_start.warm_start(self._warm_start)

    def _train_graph(
        self, input_fn: InputFn, hooks: list[Any], listeners: Sequence[Any]
    ) -> tuple[int | None, Any]:
        """Build, run; return the step that was reached and the last loss."""

        def build(features: Any, labels: Any) -> EstimatorSpec:
            return self._call_model_fn(features, labels, ModeKeys.TRAIN, self.config)

        inputs = self._inputs(input_fn, ModeKeys.TRAIN)
        with contextlib.closing(inputs):
            spec = distribute.training_spec(self._config, build, inputs)
            self._start_warm(self.latest_checkpoint())
            add_loss_summary(spec.loss)
            checkpoints.add_saver(self._config, spec.scaffold)
            all_hooks = [*inputs.hooks(), *training_hooks(self._config, spec, hooks, listeners)]
            if inputs.agreement is not None:
                all_hooks.append(inputs.agreement.hook())
            loop = TrainingLoop(
                train_op=spec.train_op,
                loss=spec.loss,
                global_step=tf.compat.v1.train.get_global_step(),
                hooks=all_hooks,
                agreement=inputs.agreement,
            )
            opener = training_session(self._config, spec, all_hooks)
            with hooked_session(opener, all_hooks) as (session, coordinator):
                loop.run(session, coordinator)
        if loop.last_loss is None and loop.data_ended:
            raise no_data("train")
        return loop.last_step, loop.last_loss

    @contextlib.contextmanager
    def _predict_graph(
        self, input_fn: InputFn, keys: Iterable[str] | str | None, hooks: Sequence[Any], path: str | None
    ) -> Iterator[Iterator[Any]]:
        inputs = self._inputs(input_fn, ModeKeys.PREDICT)
        with contextlib.closing(inputs):
            if inputs.endless:
                log.warning("predict_without_dataset_never_ends", extra={"model_dir": self.model_dir})
            spec = self._call_model_fn(inputs.features, None, ModeKeys.PREDICT, self.config)
            self._start_warm(path)
            wanted = following(chosen(spec.predictions, keys), inputs.features)
            all_hooks = [*inputs.hooks(), *hooks, *spec.prediction_hooks]
            # Workers that train together each predict by themselves.
            master = "" if spans_workers(self._config.train_distribute) else self._config.master
            opener = restoring_session(self._config, spec, path, master)
            with hooked_session(opener, all_hooks) as (session, coordinator):
                yield HookedFetches(session, coordinator, wanted, all_hooks)

    def _evaluate_graph(
        self, input_fn: InputFn, steps: int | None, hooks: Sequence[Any], path: str | None
    ) -> dict[str, Any]:
        inputs = self._inputs(input_fn, ModeKeys.EVAL)
        with contextlib.closing(inputs):
            spec, evaluation = self._evaluation(inputs, hooks)
            self._start_warm(path)
            session = restoring_session(self._config, spec, path, self._config.evaluation_master)
            return evaluation.run(session, steps)

    def _evaluation(self, inputs: Inputs, hooks: Sequence[Any]) -> tuple[EstimatorSpec, Evaluation]:
        def build(features: Any, labels: Any) -> EstimatorSpec:
            return self._call_model_fn(features, labels, ModeKeys.EVAL, self.config)

        strategy = self._config.eval_distribute
        spec, metrics = replicated_evaluation.evaluation_spec(strategy, build, inputs)
        return spec, Evaluation(spec, metrics, inputs, hooks)

    def _open_evaluation(
        self, input_fn: InputFn, hooks: Sequence[Any]
    ) -> tuple[contextlib.ExitStack, Any, Evaluation, Any]:
        """Build an evaluation that can run again and again.

        Returns:
            what lets its data go when closed, its graph, the evaluation, and the model's Scaffold.
        """
        with self._new_graph(strategy=self._config.eval_distribute) as graph:
            inputs = self._inputs(input_fn, ModeKeys.EVAL)
            stack = contextlib.ExitStack()
            stack.callback(inputs.close)
            spec, evaluation = self._evaluation(inputs, hooks)
            return stack, graph, evaluation, spec.scaffold
