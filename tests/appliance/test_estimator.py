"""The four verbs of an Estimator."""

import functools
import gc
import glob
import os
import shutil
import weakref

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from appliance import estimator as lib
from appliance.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig
from tests.appliance.models import line, linear_model_fn


@pytest.fixture
def estimator(tmp_path):
    return Estimator(linear_model_fn, config=RunConfig(str(tmp_path / "model"), tf_random_seed=1))


def summary_events(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        if "tfevents" in name:
            for event in tf.compat.v1.train.summary_iterator(os.path.join(folder, name)):
                for value in event.summary.value:
                    found.setdefault(value.tag, []).append((event.step, value))
    return found


def test_train_continues_from_the_newest_checkpoint(estimator):
    estimator.train(line(repeat=None), steps=3)
    first = estimator.get_variable_value("weight")
    assert estimator.get_variable_value("global_step") == 3
    again = Estimator(linear_model_fn, model_dir=estimator.model_dir)
    again.train(line(repeat=None), steps=2)
    assert again.get_variable_value("global_step") == 5
    assert again.get_variable_value("weight") > first


def test_training_learns_what_gradient_descent_gives(estimator):
    estimator.train(line(count=4, repeat=None), steps=2)
    x = np.linspace(0.0, 1.0, 4, dtype=np.float32)
    weight = bias = 0.0
    for _ in range(2):
        error = weight * x + bias - 3 * x
        weight, bias = weight - 0.1 * np.mean(2 * error * x), bias - 0.1 * np.mean(2 * error)
    assert estimator.get_variable_value("weight") == pytest.approx(weight, rel=1e-5)
    assert estimator.get_variable_value("bias") == pytest.approx(bias, rel=1e-5)


def test_training_leaves_the_files_that_tools_expect(estimator):
    estimator.train(line(repeat=None), steps=2)
    names = os.listdir(estimator.model_dir)
    for name in (
        "checkpoint",
        "graph.pbtxt",
        "model.ckpt-0.index",
        "model.ckpt-0.meta",
        "model.ckpt-2.index",
    ):
        assert name in names
    assert sum("tfevents" in name for name in names) == 1
    assert set(estimator.get_variable_names()) == {"weight", "bias", "global_step"}
    with open(os.path.join(estimator.model_dir, "graph.pbtxt")) as file:
        graph = text_format.Parse(file.read(), tf.compat.v1.GraphDef())
    assert "weight" in {node.name for node in graph.node}


def test_tools_find_the_whole_graph_beside_each_checkpoint_and_among_the_events(estimator):
    estimator.train(line(repeat=None), steps=2)
    for step in (0, 2):
        path = os.path.join(estimator.model_dir, f"model.ckpt-{step}")
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            tf.compat.v1.train.import_meta_graph(f"{path}.meta").restore(session, path)
            assert session.run(tf.compat.v1.train.get_global_step()) == step
        names = {operation.name for operation in graph.get_operations()}
    (file,) = glob.glob(os.path.join(estimator.model_dir, "*tfevents*"))
    events = list(tf.compat.v1.train.summary_iterator(file))
    last = [event.graph_def for event in events if event.HasField("graph_def")][-1]
    assert {node.name for node in tf.compat.v1.GraphDef.FromString(last).node} == names
    last = [event.meta_graph_def for event in events if event.HasField("meta_graph_def")][-1]
    assert "train_op" in tf.compat.v1.MetaGraphDef.FromString(last).collection_def


def test_a_copied_model_dir_still_loads(estimator, tmp_path):
    estimator.train(line(repeat=None), steps=2)
    shutil.copytree(estimator.model_dir, tmp_path / "copy")
    weight = estimator.get_variable_value("weight")
    shutil.rmtree(estimator.model_dir)
    copy = Estimator(linear_model_fn, model_dir=str(tmp_path / "copy"))
    assert copy.latest_checkpoint() == str(tmp_path / "copy" / "model.ckpt-2")
    assert copy.get_variable_value("weight") == weight


def test_training_ends_with_the_data(estimator):
    estimator.train(line(count=10, batch=4))
    assert estimator.get_variable_value("global_step") == 3


def test_max_steps_is_absolute_and_reached_once(estimator):
    estimator.train(line(repeat=None), max_steps=4)
    estimator.train(line(repeat=None), max_steps=6)
    assert estimator.get_variable_value("global_step") == 6

    def untouched():
        raise AssertionError("the input_fn was called")

    assert estimator.train(untouched, max_steps=6) is estimator


@pytest.mark.parametrize(
    "arguments", [{"steps": 1, "max_steps": 1}, {"steps": 0}, {"steps": -1}, {"max_steps": 0}]
)
def test_steps_out_of_range_are_refused(estimator, arguments):
    with pytest.raises(ValueError, match="steps"):
        estimator.train(line(), **arguments)


def test_nan_loss_raises_whichever_way_steps_run(estimator):
    """The NaN is found at the very step, on steps without any hook and on those with one."""

    class Quiet(lib.SessionRunHook):
        def after_run(self, run_context, run_values):
            pass

    diverging = functools.partial(line, slope=np.nan)
    for hooks in ([], [Quiet()]):
        with pytest.raises(lib.NanLossDuringTrainingError):
            estimator.train(diverging(repeat=None), steps=50, hooks=hooks)
    assert estimator.get_variable_value("global_step") == 0


def test_input_fn_gets_the_arguments_that_it_names(estimator):
    seen = []

    def input_fn(mode, params, config):
        seen.append((mode, params, config.model_dir))
        return line()()

    estimator.train(input_fn, steps=1)
    estimator.evaluate(input_fn)
    assert seen == [("train", {}, estimator.model_dir), ("eval", {}, estimator.model_dir)]


def test_datasets_with_lookup_tables_are_initialised(estimator):
    def input_fn():
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1.0, 2.0])), 0.0
        )
        return (
            tf.data.Dataset.from_tensor_slices(["a", "b"])
            .map(lambda key: ({"x": [table.lookup(key)]}, [3.0]))
            .batch(2)
        )

    estimator.train(input_fn)
    assert estimator.get_variable_value("global_step") == 1


def test_evaluate_reports_loss_as_mean_over_batches(estimator):
    """The last, smaller batch counts as much as the others for `loss`, but not for metrics."""
    results = estimator.evaluate(line(count=5, batch=4))
    y = 3 * np.linspace(0.0, 1.0, 5)
    assert results["loss"] == pytest.approx((np.mean(y[:4] ** 2) + y[4] ** 2) / 2, rel=1e-5)
    assert results["mae"] == pytest.approx(np.mean(y), rel=1e-5)
    assert results["global_step"] == 0
    assert all(isinstance(value, np.generic) for value in results.values())


def test_evaluate_takes_as_many_batches_as_asked(estimator):
    one = estimator.evaluate(line(count=8, batch=4), steps=1)
    assert one["mae"] == pytest.approx(np.mean(3 * np.linspace(0.0, 1.0, 8)[:4]), rel=1e-5)
    with pytest.raises(ValueError, match="steps > 0"):
        estimator.evaluate(line(), steps=0)


def test_evaluate_writes_summaries_by_name(estimator):
    estimator.train(line(repeat=None), steps=2)
    results = estimator.evaluate(line(), name="test")
    assert estimator.eval_dir("test") == os.path.join(estimator.model_dir, "eval_test")
    events = summary_events(estimator.eval_dir("test"))
    assert set(events) == {"loss", "mae", "checkpoint_path"}
    (step, value), *_ = events["loss"]
    assert (step, value.simple_value) == (2, results["loss"])
    assert estimator.eval_dir() == os.path.join(estimator.model_dir, "eval")


def test_evaluate_takes_an_older_checkpoint(estimator):
    estimator.train(line(repeat=None), steps=2)
    old = estimator.evaluate(line(), checkpoint_path=os.path.join(estimator.model_dir, "model.ckpt-0"))
    assert old["global_step"] == 0
    assert old["loss"] > estimator.evaluate(line())["loss"]
    with pytest.raises(ValueError, match=r"no-such\.ckpt-1"):
        estimator.evaluate(line(), checkpoint_path="no-such.ckpt-1")


def test_training_summaries_hold_loss_and_speed(tmp_path):
    config = RunConfig(str(tmp_path), save_summary_steps=2, log_step_count_steps=3)
    Estimator(linear_model_fn, config=config).train(line(repeat=None), steps=7)
    events = summary_events(tmp_path)
    assert [step for step, _ in events["loss"]] == [1, 3, 5, 7]
    assert [step for step, _ in events["global_step/sec"]] == [4, 7]


def test_keep_checkpoint_max_limits_the_checkpoints(tmp_path):
    config = RunConfig(str(tmp_path), save_checkpoints_steps=2, keep_checkpoint_max=2)
    Estimator(linear_model_fn, config=config).train(line(repeat=None), steps=5)
    for kind in ("index", "meta"):
        kept = sorted(path.name for path in tmp_path.glob(f"model.ckpt-*.{kind}"))
        assert kept == [f"model.ckpt-4.{kind}", f"model.ckpt-5.{kind}"]


def test_predict_is_lazy_and_yields_examples(estimator):
    estimator.train(line(repeat=None), steps=2)
    rows = estimator.predict(line(count=5, batch=2, repeat=None))
    first, second = next(rows), next(rows)
    assert set(first) == {"y", "double"}
    assert first["y"].shape == (1,)
    assert second["double"] == pytest.approx(2 * second["y"])
    assert tf.executing_eagerly(), "the graph of predict is the default one between two predictions"
    rows.close()


def test_predict_batches_and_keys(estimator):
    batches = list(estimator.predict(line(count=5, batch=2), predict_keys=["y"], yield_single_examples=False))
    assert [batch["y"].shape for batch in batches] == [(2, 1), (2, 1), (1, 1)]
    assert all(set(batch) == {"y"} for batch in batches)
    with pytest.raises(ValueError, match=r"no \['other'\].*'y', 'double'"):
        next(estimator.predict(line(), predict_keys=["other"]))


def test_predict_refuses_to_slice_unequal_rows(tmp_path):
    def model_fn(features):
        return EstimatorSpec(ModeKeys.PREDICT, predictions={"a": features["x"], "b": tf.zeros([1, 1])})

    model = Estimator(model_fn, model_dir=str(tmp_path))
    with pytest.raises(ValueError, match="Batch length"):
        next(model.predict(line()))
    assert next(model.predict(line(), yield_single_examples=False))["b"].shape == (1, 1)


def test_model_dir_of_constructor_and_config_must_agree(tmp_path):
    config = RunConfig(str(tmp_path))
    assert Estimator(linear_model_fn, tmp_path, config).model_dir == str(tmp_path)
    with pytest.raises(ValueError, match="different values"):
        Estimator(linear_model_fn, "elsewhere", config)
    with pytest.raises(ValueError, match="instance of `RunConfig`"):
        Estimator(linear_model_fn, config={"model_dir": "x"})
    temporary = Estimator(linear_model_fn, model_dir="")
    assert os.path.isdir(temporary.model_dir)
    assert temporary.config.model_dir == temporary.model_dir


def test_params_are_copied_deeply(tmp_path):
    params = {"learning_rate": 0.1, "units": [1]}
    model = Estimator(linear_model_fn, str(tmp_path), params=params)
    params["units"].append(2)
    model.params["units"].append(3)
    assert model.params == {"learning_rate": 0.1, "units": [1]}


def test_subclasses_may_add_methods_but_not_change_them():
    class Adds(Estimator):
        def score(self):
            return 1

    class Changes(Estimator):
        def train(self):
            return self

    assert Adds(linear_model_fn).score() == 1
    with pytest.raises(ValueError, match=r"does override \['train'\]"):
        Changes(linear_model_fn)


def test_strategies_are_refused_with_their_name():
    with pytest.raises(ValueError, match="train_distribute is not supported"):
        Estimator(linear_model_fn, config=RunConfig(train_distribute=object()))


def test_variables_of_an_untrained_model_are_refused(estimator):
    with pytest.raises(ValueError, match="Couldn't find trained model"):
        estimator.get_variable_names()


def test_calls_leave_no_graph_behind(estimator):
    graphs = []

    def counted(features, labels, mode, params):
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return linear_model_fn(features, labels, mode, params)

    model = Estimator(counted, model_dir=estimator.model_dir)
    for _ in range(5):
        model.train(line(), steps=1)
        model.evaluate(line())
    gc.collect()
    assert len(graphs) == 10
    assert not [graph for graph in graphs if graph() is not None]
