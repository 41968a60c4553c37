"""One worker, or the evaluator, of a cluster that trains in step: `... synchronous_member MODEL_DIR PLAN`.

TF_CONFIG says which. It prints what it did, as JSON. The plans are the functions of these names.
"""

import json
import logging
import sys

import numpy as np
import tensorflow as tf

from appliance import estimator
from appliance.estimator.agreement import WorkerLost
from appliance.estimator.json_state import plain_metrics
from tests.appliance.mirrored_training import canned, columns
from tests.appliance.models import linear_model_fn

BATCH = 8
STEPS = 5


def share(input_context=None, count=96, repeat=1):
    """Return the batches of one worker; with two of them, a step has the examples of one batch of 16."""
    dataset = tf.data.Dataset.from_tensor_slices(columns()).take(count)
    if input_context is not None:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.repeat(repeat).batch(BATCH)


def endless(input_context):
    return share(input_context, repeat=None)


def uneven(input_context):
    """Three batches for the chief, two for the worker."""
    return share(input_context, count=33)


def damaged(input_context):
    """Data whose second batch cannot be read by the worker."""
    place = input_context.input_pipeline_id

    def read(number):
        if place and number:
            raise OSError("the disk of the worker is gone")
        return np.float32(1.0)

    checked = tf.data.Dataset.range(100).map(lambda n: tf.numpy_function(read, [n], tf.float32))
    return tf.data.Dataset.zip((endless(input_context), checked)).map(lambda batch, _: batch)


class Steps(estimator.SessionRunHook):
    """Notes the global step after each run; may ask to stop, or fail, at the third."""

    def __init__(self, stop=False, fail=False):
        self.seen = []
        self._stop, self._fail = stop, fail

    def begin(self):
        self._step = tf.compat.v1.train.get_global_step()

    def after_run(self, run_context, run_values):
        self.seen.append(int(run_context.session.run(self._step)))
        if len(self.seen) == 3 and self._stop:
            run_context.request_stop()
        if len(self.seen) == 3 and self._fail:
            raise ValueError("the hook of the worker has failed")


def new_config(model_dir, strategy, **settings):
    first = estimator.RunConfig(train_distribute=strategy).is_chief
    # The worker's own initial values would be others: it takes those of the chief.
    return estimator.RunConfig(
        model_dir,
        tf_random_seed=1 if first else 2,
        train_distribute=strategy,
        save_summary_steps=1,
        log_step_count_steps=2,
        **settings,
    )


def small(folder, strategy, **settings):
    """Return a model without Keras, which a process that has no use for it need not import."""
    return estimator.Estimator(linear_model_fn, config=new_config(folder, strategy, **settings), params={})


def rounds(model_dir):
    """Train again and again in one process, each time with another end. The server is started by train."""
    with tf.Graph().as_default():
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    first = canned(new_config(model_dir, strategy))
    chief = first.config.is_chief
    done = {"seen": {}, "errors": {}, "step": {}, "contexts": [], "chief": chief}

    def noted(input_context):
        done["contexts"].append([input_context.num_input_pipelines, input_context.input_pipeline_id])
        return share(input_context)

    def train(name, model, input_fn, *hooks, **limit):
        steps = Steps(stop=name == "worker_stops" and not chief, fail=name == "worker_fails" and not chief)
        try:
            model.train(input_fn, hooks=[steps, *hooks], **limit)
        except (WorkerLost, ValueError, tf.errors.OpError) as error:
            done["errors"][name] = f"{type(error).__name__}: {error}"
        done["seen"][name] = steps.seen
        done["step"][name] = (
            int(model.get_variable_value("global_step")) if model.latest_checkpoint() else None
        )

    train("max_steps", first, noted, max_steps=STEPS)
    done["values"] = {
        name: np.asarray(first.get_variable_value(name)).tolist() for name in first.get_variable_names()
    }
    model = small(f"{model_dir}_small", strategy, eval_distribute=strategy)
    asked = []
    stop = estimator.experimental.make_early_stopping_hook(
        model, lambda: asked.append(True) or len(asked) == 2, run_every_secs=None, run_every_steps=2
    )
    train("out_of_data", model, uneven)
    train("chief_stops", model, endless, stop)
    train("worker_stops", model, endless)
    train("worker_fails", model, endless)
    done["metrics"] = plain_metrics(model.evaluate(share))
    done["predicted"] = len(list(model.predict(share)))
    train("elsewhere", small(f"{model_dir}_{'small' if chief else 'of_worker'}", strategy), share)
    done["averages"] = averages(f"{model_dir}_averages", strategy)
    train("worker_cannot_read", model, damaged)
    return done


def averages(model_dir, strategy):
    """Train a Keras layer with moving averages; return this worker's mean of the inputs after three steps."""
    seen = []

    def model_fn(features, labels, mode):
        normalization = tf.keras.layers.BatchNormalization(momentum=0.5)
        outputs = normalization(features["x"], training=mode == estimator.ModeKeys.TRAIN)
        return estimator.RegressionHead().create_estimator_spec(
            features, mode, outputs, labels, "SGD", normalization.trainable_variables
        )

    class Averages(estimator.SessionRunHook):
        def end(self, session):
            (mean,) = [v for v in tf.compat.v1.global_variables() if v.op.name.endswith("moving_mean")]
            seen.extend(session.run(mean).tolist())

    model = estimator.Estimator(model_fn, config=new_config(model_dir, strategy))
    model.train(share, hooks=[Averages()], steps=3)
    return seen


def evaluated(model_dir):
    """Train and evaluate, with a strategy in each task; that of the evaluator is not used."""
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    model = small(model_dir, strategy)
    metrics, _ = estimator.train_and_evaluate(
        model,
        estimator.TrainSpec(share, max_steps=STEPS),
        estimator.EvalSpec(share, steps=None, start_delay_secs=0, throttle_secs=0),
    )
    return metrics and plain_metrics(metrics)


def lonely(model_dir):
    """Wait for a worker that does not come."""
    with tf.Graph().as_default():
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model = small(model_dir, strategy, session_creation_timeout_secs=2)
    try:
        model.train(share)
    except WorkerLost as error:
        return str(error)


def killed(model_dir):
    """Train without an end, in eager mode, with many checkpoints."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # TensorFlow does not always notice that the other worker has died in the middle of an exchange: then this
    # ends it.
    model = small(model_dir, strategy, save_checkpoints_steps=5, session_creation_timeout_secs=20)
    steps = Steps()
    started = model.latest_checkpoint()
    limit = None if started is None else int(started.rsplit("-", 1)[1]) + 5
    model.train(endless, hooks=[steps], max_steps=limit)
    return {"from": started, "limit": limit, "seen": steps.seen}


def main():
    logging.basicConfig(level="INFO")
    print(json.dumps(globals()[sys.argv[2]](sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
